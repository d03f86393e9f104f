# The operations. All that change the ledger take an idempotency key; without one, each call makes its own, with which
# all its attempts are sent.

send_request <- function(ledger, method, path, ..., json = NULL, query = list(), idempotency_key = NULL) {
  named_only(...)
  if (!is_text(method) || !matches("[A-Za-z]+", method)) refuse("method: expected a method of HTTP, such as GET")
  if (!is_text(path)) refuse("path: expected one text")
  if (!is.list(query) || !all(vapply(query, is_text, NA)) || length(query) != sum(nzchar(names(query)))) {
    refuse("query: expected a list of named texts")
  }
  exchange(ledger, toupper(method), path, whole, sent(json), query, idempotency_key)
}

open_account <- function(ledger, name, ..., unit, neighbouring, budget, further = list(), idempotency_key = NULL) {
  named_only(...)
  if (!inherits(budget, "pbl_budget")) refuse("budget: expected a budget, such as budget_zcdp()")
  stated <- list(name = name, unit = unit, neighbouring = neighbouring, budget = sent(budget))
  exchange(ledger, "POST", "/v1/accounts", account_of, c(stated, lapply(further, sent)), key = idempotency_key)
}

account <- function(ledger, name) exchange(ledger, "GET", path_to(name), account_of)

balance <- function(ledger, account, ..., tag = NULL, delta = NULL) {
  named_only(...)
  exchange(ledger, "GET", path_to(account, "balance"), balance_of, query = stated(tag = tag, delta = exact_or_none(delta)))
}

calibrate <- function(ledger, mechanism, ..., moe, confidence = "0.95", further = list()) {
  named_only(...)
  target <- list(mechanism = mechanism, moe = exact_text(moe, "moe"), confidence = exact_text(confidence, "confidence"))
  read <- function(parsed, answer) found(parsed, read_plan(parsed[["mechanism"]]))
  exchange(ledger, "POST", "/v1/calibrations/moe", read, c(target, lapply(further, sent)))
}

new_release <- function(name, plan, ..., tags = NULL, partitions = NULL, delta = NULL, reserve_for = NULL,
                        periods = NULL) {
  named_only(...)
  if (!is_text(name)) refuse("name: expected one text")
  if (!inherits(plan, "pbl_plan")) refuse("plan: expected a plan, such as plan_geometric()")
  release <- stated(
    name = enc2utf8(name),
    plan = plan,
    tags = if (length(tags)) field_value("tags", tags),
    partitions = if (length(partitions)) field_value("partitions", partitions),
    delta = exact_or_none(delta),
    reserve_for = if (!is.null(reserve_for)) duration(reserve_for),
    periods = periods_of(periods)
  )
  structure(class = c("pbl_new_release", "pbl_document"), release)
}

register <- function(ledger, account, ..., name, plan, tags = NULL, partitions = NULL, delta = NULL,
                     reserve_for = NULL, periods = NULL, dry_run = FALSE, idempotency_key = NULL) {
  named_only(...)
  new <- new_release(
    name, plan,
    tags = tags, partitions = partitions, delta = delta, reserve_for = reserve_for, periods = periods
  )
  exchange(
    ledger, "POST", path_to(account, "releases"), release_of, sent(new), dry_run_query(dry_run), idempotency_key
  )
}

register_batch <- function(ledger, account, releases, ..., dry_run = FALSE, idempotency_key = NULL) {
  named_only(...)
  if (!is.list(releases) || !all(vapply(releases, inherits, NA, "pbl_new_release"))) {
    refuse("releases: expected a list of new_release()")
  }
  read <- function(parsed, answer) found(parsed, lapply(parsed[["releases"]], release_of))
  body <- list(releases = lapply(unname(releases), sent))
  exchange(
    ledger, "POST", path_to(account, "releases", "batch"), read, body, dry_run_query(dry_run), idempotency_key
  )
}

releases <- function(ledger, account, ..., name = NULL, tag = NULL, state = NULL, registered_by = NULL,
                     since = NULL, before = NULL, newest_first = FALSE, most = Inf) {
  named_only(...)
  listed_releases(
    ledger, path_to(account, "releases"), name, tag, state, registered_by, since, before, newest_first, most
  )
}

find_releases <- function(ledger, ..., name = NULL, tag = NULL, state = NULL, registered_by = NULL,
                          since = NULL, before = NULL, newest_first = FALSE, most = Inf) {
  named_only(...)
  listed_releases(ledger, "/v1/releases", name, tag, state, registered_by, since, before, newest_first, most)
}

# The releases of a list, page by page.
listed_releases <- function(ledger, path, name, tag, state, registered_by, since, before, newest_first, most) {
  if (!isTRUE(newest_first) && !isFALSE(newest_first)) refuse("newest_first: expected TRUE or FALSE")
  if (!is.numeric(most) || length(most) != 1L || is.na(most) || most < 1) refuse("most: expected a number above 0")
  asked <- stated(
    name = name, tag = tag, state = state, registered_by = registered_by, since = moment(since, "since"),
    before = moment(before, "before"), order = if (newest_first) "desc"
  )
  if (!all(vapply(asked, is_text, NA))) refuse("expected texts to search by")
  read <- function(parsed, answer) {
    found(parsed, list(items = lapply(parsed[["items"]], release_of), cursor = parsed[["next_cursor"]]))
  }
  listed <- list()
  repeat {
    query <- c(asked, limit = whole_text(min(1000, floor(most) - length(listed))))
    page <- exchange(ledger, "GET", path, read, query = query)
    listed <- c(listed, page$items)
    if (is.null(page$cursor) || length(listed) >= floor(most)) return(listed)
    asked$cursor <- page$cursor
  }
}

release <- function(ledger, account, release) {
  exchange(ledger, "GET", path_to(account, "releases", release), release_of)
}

commit <- function(ledger, account, release, ..., idempotency_key = NULL) {
  named_only(...)
  exchange(ledger, "POST", path_to(account, "releases", release, "commit"), release_of, key = idempotency_key)
}

void <- function(ledger, account, release, ..., reason, idempotency_key = NULL) {
  named_only(...)
  body <- list(reason = reason)
  exchange(ledger, "POST", path_to(account, "releases", release, "void"), release_of, body, key = idempotency_key)
}

receipt <- function(ledger, account, release) {
  exchange(ledger, "GET", path_to(account, "releases", release, "receipt"), whole)
}

publication_package <- function(ledger, account, release, ..., confidence = "0.95") {
  named_only(...)
  query <- list(confidence = exact_text(confidence, "confidence"))
  read <- function(parsed, answer) {
    kind <- trimws(sub(";.*$", "", text_of(answer$headers[["content-type"]])))
    if (kind == "application/zip") answer$body else unexpected("a ZIP archive", kind)
  }
  path <- path_to(account, "releases", release, "package")
  exchange(ledger, "GET", path, read, query = query, accept = "application/zip, application/problem+json")
}

draw <- function(ledger, account, frame, ..., name, mechanism, count = "count", tags = NULL, delta = NULL,
                 granularity = NULL, periods = NULL, idempotency_key = NULL) {
  named_only(...)
  if (!inherits(mechanism, "pbl_mechanism")) refuse("mechanism: expected a mechanism, such as plan_geometric()")
  body <- stated(
    name = name,
    mechanism = sent(mechanism),
    tags = if (length(tags)) field_value("tags", tags),
    delta = exact_or_none(delta),
    granularity = exact_or_none(granularity),
    periods = periods_of(periods)
  )
  draw_at(ledger, path_to(account, "draws"), frame, count, body, idempotency_key)
}

draw_release <- function(ledger, account, release, frame, ..., mechanism, count = "count", partition = NULL,
                         repetition = 0, granularity = NULL, idempotency_key = NULL) {
  named_only(...)
  body <- selection(mechanism, partition, repetition, granularity)
  draw_at(ledger, path_to(account, "releases", release, "draws"), frame, count, body, idempotency_key)
}

draw_partitions <- function(ledger, account, release, frame, ..., mechanism, by, count = "count", repetition = 0,
                            granularity = NULL, idempotency_key = NULL) {
  named_only(...)
  key <- key_of(idempotency_key)
  path <- path_to(account, "releases", release, "draws")
  counts <- counts_of(frame, count)
  of_rows <- texts_in(frame, by)
  partitions <- unique(of_rows)
  places <- split(seq_along(of_rows), match(of_rows, partitions))
  noisy <- character(length(counts))
  answers <- list()
  for (number in seq_along(partitions)) {
    rows <- places[[number]]
    body <- selection(mechanism, partitions[number], repetition, granularity)
    one <- with_key(key, noisy_of(ledger, path, counts[rows], body, part_key(key, partitions[number])))
    noisy[rows] <- one$noisy
    answers <- c(answers, list(one))
  }
  with_key(key, drawn_of(frame, count, noisy, answers))
}

draw_at <- function(ledger, path, frame, count, body, key) {
  key <- key_of(key)
  one <- noisy_of(ledger, path, counts_of(frame, count), body, key)
  with_key(key, drawn_of(frame, count, one$noisy, list(one)))
}

# Send counts; return the noisy ones as texts, and what the answer says of them.
noisy_of <- function(ledger, path, counts, body, key) {
  read <- function(parsed, answer) {
    granularity <- parsed[["mechanism"]][["granularity"]]
    moe <- parsed[["margin_of_error"]][["moe"]]
    result <- list(
      noisy = noisy_texts(parsed[["noisy"]], length(counts)),
      granular = !is.null(granularity) && !identical(as.character(granularity), "1"),
      moe = if (is_whole(moe)) whole_text(moe) else moe,
      confidence = parsed[["margin_of_error"]][["confidence"]],
      release = parsed[["release"]],
      draw = parsed[["draw"]],
      head = head_text(parsed[["head"]]),
      replayed = identical(answer$headers[["idempotent-replay"]], "true")
    )
    right <- vapply(result[c("moe", "release", "draw")], is_text, NA)
    if (!all(right)) unexpected("a draw", "another document")
    result
  }
  exchange(ledger, "POST", path, read, c(body, list(counts = counts_json(counts))), key = key)
}

drawn_of <- function(frame, count, noisy, answers) {
  last <- answers[[length(answers)]]
  structure(class = "pbl_drawn", list(
    frame = with_noisy(frame, count, noisy, last$moe, last$granular),
    confidence = last$confidence,
    release = last$release,
    draws = vapply(answers, function(one) one$draw, ""),
    head = last$head,
    replayed = all(vapply(answers, function(one) one$replayed, NA))
  ))
}

selection <- function(mechanism, partition, repetition, granularity) {
  if (!is_text(mechanism)) refuse("mechanism: expected its name or path in the plan")
  stated(
    mechanism = mechanism, partition = partition, repetition = whole_number(repetition, "repetition"),
    granularity = exact_or_none(granularity)
  )
}

# Refuse what `...` has: a misspelt argument, or one without a name.
named_only <- function(...) if (...length()) refuse_arguments(names(formals(sys.function(-1L))), ...)

refuse_arguments <- function(known, ...) {
  given <- names(substitute(list(...)))[2L] # without the values: they may be counts
  got <- if (is.null(given) || !nzchar(given)) "one without a name" else given
  refuse("expected named arguments, of ", paste(setdiff(known, "..."), collapse = ", "), "; got ", got)
}

stated <- function(...) Filter(Negate(is.null), list(...))

exact_or_none <- function(value) if (!is.null(value)) exact_text(value, "delta, granularity")

dry_run_query <- function(asked) {
  if (!isTRUE(asked) && !isFALSE(asked)) refuse("dry_run: expected TRUE or FALSE")
  if (asked) list(dry_run = "true") else list()
}

path_to <- function(...) {
  parts <- list(...)
  if (!all(vapply(parts, is_text, NA)) || !all(vapply(parts, nzchar, NA))) {
    refuse("expected the name of an account, and the id of a release where one is named, as text")
  }
  paste(c("/v1/accounts", vapply(parts, quoted, "")), collapse = "/")
}

duration <- function(time) {
  seconds <- if (inherits(time, "difftime") && length(time) == 1L) as.numeric(time, units = "secs")
  if (is.null(seconds) || !is_whole(seconds) || seconds <= 0) {
    refuse('reserve_for: expected whole seconds above 0, such as as.difftime(7, units = "days")')
  }
  paste0("PT", whole_text(seconds), "S")
}

# A day, or a moment with its time zone, as the service reads it.
moment <- function(value, what) {
  if (is.null(value) || is_text(value)) return(value)
  if (length(value) != 1L || is.na(value)) refuse(what, ": expected one day or moment")
  if (inherits(value, "Date")) return(format(value, "%Y-%m-%d"))
  if (!inherits(value, "POSIXt")) refuse(what, ": expected a Date, a POSIXct or a text such as \"2026-11-29\"")
  format(value, "%Y-%m-%dT%H:%M:%OS6Z", tz = "UTC")
}

periods_of <- function(periods) {
  if (is.list(periods) && !is.null(periods[["list"]])) periods[["list"]] <- as.list(periods[["list"]])
  periods
}

whole <- function(parsed, answer) {
  if (!is.null(parsed)) return(parsed)
  if (any(answer$body == 0)) unexpected("JSON or a text", "bytes") else rawToChar(answer$body)
}

# Return what an answer has; a document of another kind is unexpected.
found <- function(parsed, value) {
  if (!is_object(parsed)) unexpected("a result of the service", "another document")
  tryCatch(value, pbl_invalid_argument = function(failed) unexpected("a result of the service", "another document"))
}

account_of <- function(parsed, answer = NULL) {
  of_answer("pbl_account", parsed, c("name", "state"), list())
}

release_of <- function(parsed, answer = NULL) {
  of_answer("pbl_release", parsed, c("account", "name", "state"), list(id = text_of(parsed[["id"]])))
}

of_answer <- function(class, parsed, fields, further) {
  right <- is_object(parsed) && all(vapply(parsed[fields], is_text, NA)) && is_object(parsed[["remaining"]])
  if (!right || !is_object(parsed[["head"]])) unexpected("a result of the service", "another document")
  own <- list(remaining = parsed[["remaining"]], head = head_text(parsed[["head"]]), document = parsed)
  structure(class = class, c(further, parsed[fields], own))
}

print.pbl_account <- function(x, ...) {
  cat("<account ", x$name, ", ", x$state, ">\n", sep = "")
  invisible(x)
}

balance_of <- function(parsed, answer = NULL) {
  if (!is_object(parsed) || !is_object(parsed[["remaining"]])) unexpected("a result of the service", "another document")
  structure(class = "pbl_balance", parsed)
}

# The few figures that matter; the list has all of them.
print.pbl_balance <- function(x, ...) {
  cat(
    "<balance of ", x$account, ", at entry ", text(x$head$seq), ">\n",
    "  budget    ", figures(x$budget), "\n", "  left      ", figures(x$remaining), "\n",
    "  spent     ", loss_text(x$spent), "\n", "  held      ", loss_text(x$reserved), "\n",
    "  releases  ", text(x$releases), "\n",
    sep = ""
  )
  invisible(x)
}

text <- function(value) if (is.character(value)) value else format(value, digits = 15)

figures <- function(members) {
  members <- members[!names(members) %in% c("definition", "epsilon_exact", "rho_exact")]
  paste(names(members), vapply(members, text, ""), collapse = ", ")
}

# A loss in the notions that are finite, and as epsilon at the first delta.
loss_text <- function(loss) {
  parts <- vapply(Filter(is_object, unname(loss[c("pure", "zcdp")])), figures, "")
  best <- if (length(loss$best)) loss$best[[1L]]
  found <- if (is_object(best$adaptive)) best$adaptive else best$fixed
  if (is_object(found)) parts <- c(parts, paste("epsilon", text(found$epsilon), "at delta", text(found$delta)))
  if (length(parts)) paste(parts, collapse = "; ") else "infinite"
}

print.pbl_release <- function(x, ...) {
  if (nzchar(x$id)) {
    cat("<release ", x$id, " of ", x$account, ", ", x$state, ": ", x$name, ">\n", sep = "")
  } else {
    cat("<dry run, nothing is registered: ", x$name, " of ", x$account, " would be ", x$state, ">\n", sep = "")
  }
  invisible(x)
}

# Without the noisy counts: ask for the frame to see them.
print.pbl_drawn <- function(x, ...) {
  cat("<drawn: ", nrow(x$frame), " noisy counts of release ", x$release, ">\n", sep = "")
  invisible(x)
}

as.data.frame.pbl_drawn <- function(x, ...) x$frame
