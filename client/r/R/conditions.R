# Conditions: the class pbl_<code> for each problem of the service, and classes for what fails in this package.
#
# No message contains a count or the key. No condition has a call: a call may quote both.

fail <- function(class, message, ...) {
  classes <- unique(c(paste0("pbl_", class), "pbl_error", "error", "condition"))
  stop(structure(class = classes, list(message = message, call = NULL, ...)))
}

refuse <- function(...) fail("invalid_argument", paste0(...))

# The condition of a problem: its members are members of the condition.
problem <- function(status, members, retry_after = NULL) {
  code <- sub("^.*/", "", text_of(members[["type"]]))
  known <- if (matches("[a-z_]+", code)) paste0("pbl_", code)
  title <- if (is.null(members[["title"]])) code else text_of(members[["title"]])
  message <- paste0(title, ": ", text_of(members[["detail"]]))
  faults <- vapply(members[["errors"]], fault_text, "")
  own <- list(
    message = paste(c(message, faults, stored_counts(code, members)), collapse = "; "), call = NULL, status = status, code = code,
    retry_after = retry_after, idempotency_key = NULL, members = members
  )
  others <- members[setdiff(names(members), c(names(own), "call", ""))]
  structure(class = c(known, "pbl_problem", "pbl_error", "error", "condition"), c(own, others))
}

# Where the noisy counts are that were drawn before.
stored_counts <- function(code, members) {
  account <- regmatches(text_of(members[["instance"]]), regexpr("^/v1/accounts/[^/]+/", text_of(members[["instance"]])))
  draw <- text_of(members[["draw"]])
  if (code == "already_drawn" && length(account) && nzchar(draw)) {
    paste0("the noisy counts are at GET ", account, "draws/", draw)
  }
}

fault_text <- function(fault) {
  place <- text_of(fault[["pointer"]])
  paste0(if (nzchar(place)) place else "the body", ": ", text_of(fault[["detail"]]))
}

text_of <- function(value) if (is.character(value) && length(value) == 1L) value else ""

# Evaluate; a condition of this package that leaves has the key with which the same call continues.
with_key <- function(key, work) {
  tryCatch(work, pbl_error = function(failed) {
    failed$idempotency_key <- key
    stop(failed)
  })
}
