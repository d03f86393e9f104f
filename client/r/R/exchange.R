# One exchange with the service: a head that is expected, a key, attempts, and a problem as a condition.
#
# A call is a list of method, path, query, headers and body; an answer one of status, headers and body. The rules of
# repeated requests are here and not in httr2's req_retry(), which has others: it does not repeat 502 and 504, waits
# for any Retry-After, and repeats lost connections in some of its versions only.

busy <- c(429L, 502L, 503L, 504L) # 502 and 504 are a proxy's: the request may have been carried out
present_heads <- c("", "/head", "/history") # below an account: answers to GET that have its present head
account_path <- "^/v1/accounts/([^/?]+)(/[^?]*)?(\\?.*)?$"

retry_rules <- function(attempts = 6, shortest = 0.5, longest = 60, jitter = NULL) {
  if (!is_whole(attempts) || attempts < 1) refuse("attempts: expected a whole number of at least 1")
  for (seconds in list(shortest, longest)) {
    if (!is_seconds(seconds)) refuse("shortest and longest: expected seconds of at least 0")
  }
  jitter <- if (is.null(jitter)) function() openssl::rand_num(1L) else jitter # R's own seed stays as it is
  structure(class = "pbl_retries", list(attempts = attempts, shortest = shortest, longest = longest, jitter = jitter))
}

is_seconds <- function(value) is.numeric(value) && length(value) == 1L && is.finite(value) && value >= 0

# The pause after an attempt, counted from 1, in seconds; NULL to give up.
pause_after <- function(rules, attempt, retry_after = NULL) {
  least <- if (is.null(retry_after)) 0 else retry_after
  if (attempt >= rules$attempts || least > rules$longest) return(NULL)
  backoff <- min(rules$longest, rules$shortest * 2^(attempt - 1)) * (1 - rules$jitter() / 2)
  max(backoff, least)
}

# Send JSON; return what `read` makes of the parsed answer, or of its text where it is not JSON.
exchange <- function(ledger, method, path, read, body = NULL, query = list(), key = NULL, accept = NULL) {
  if (!inherits(ledger, "pbl_ledger")) refuse("expected a ledger, as connect_ledger() returns it")
  if (!matches("/(?!/)[!-~]*", path)) {
    refuse("expected a path such as /v1/principal, encoded: the key is sent to no other address")
  }
  if (method != "GET") key <- key_of(key)
  in_account <- regmatches(path, regexec(account_path, path))[[1L]]
  account <- if (length(in_account)) unquoted(in_account[2L])
  with_key(key, {
    expected <- if (!is.null(ledger$heads) && !is.null(account)) kept_head(ledger$heads, account)
    headers <- c(accept = accept, "idempotency-key" = if (method != "GET") key, "if-ledger-includes" = expected)
    body <- if (!is.null(body)) write_json(body)
    call <- list(method = method, path = path, query = query, headers = as.list(headers), body = body)
    answer <- attempts(ledger, call)
    parsed <- parsed_answer(answer)
    if (path == "/v1/accounts" && is.list(parsed)) account <- parsed[["name"]] # it has just been opened
    if (!is.null(ledger$heads) && is_text(account)) {
      present <- !length(in_account) || method != "GET" || in_account[3L] %in% present_heads
      keep_answered(ledger$heads, account, answer, parsed, if (present) expected)
    }
    read(parsed, answer)
  })
}

attempts <- function(ledger, call) {
  attempt <- 0
  repeat {
    attempt <- attempt + 1
    answer <- ledger$perform(ledger, call)
    lost <- is.null(answer$status)
    if (!lost && !answer$status %in% busy) return(answer)
    pause <- pause_after(ledger$retries, attempt, if (!lost) retry_after(answer))
    if (!is.null(pause)) {
      Sys.sleep(pause)
    } else if (lost) {
      fail("connection_failed", paste0("no answer to ", call$method, " ", call$path, ": ", answer$reason))
    } else {
      return(answer)
    }
  }
}

# Send a call once. The result has no status where the connection failed; no error of httr2, which refers to the
# request and so to the key and the counts, leaves this function.
perform <- function(ledger, call) {
  request <- httr2::request(paste0(ledger$address, call$path, query_text(call$query, call$path)))
  request <- httr2::req_method(request, call$method)
  request <- httr2::req_headers(request, !!!call$headers)
  if (!is.null(call$body)) request <- httr2::req_body_raw(request, charToRaw(call$body), "application/json")
  request <- httr2::req_auth_bearer_token(request, key_for(ledger))
  request <- httr2::req_user_agent(request, paste0("privacybudgetledger-r/", version()))
  request <- httr2::req_timeout(request, ledger$timeout)
  request <- httr2::req_options(request, followlocation = FALSE, path_as_is = TRUE)
  request <- httr2::req_error(request, is_error = function(response) FALSE)
  tryCatch(
    {
      response <- httr2::req_perform(request, verbosity = 0)
      body <- tryCatch(httr2::resp_body_raw(response), error = function(empty) raw())
      answer_of(httr2::resp_status(response), httr2::resp_headers(response), body)
    },
    error = function(failed) {
      cause <- if (inherits(failed$parent, "condition")) failed$parent else failed
      list(reason = conditionMessage(cause))
    }
  )
}

answer_of <- function(status, headers = list(), body = raw()) {
  headers <- as.list(headers)
  names(headers) <- tolower(names(headers))
  list(status = as.integer(status), headers = headers, body = body)
}

# The seconds of a Retry-After header, from now where it is a date; NULL without a valid one.
retry_after <- function(answer) {
  text <- text_of(answer$headers[["retry-after"]])
  if (matches("[0-9]{1,9}", text)) return(as.numeric(text))
  pattern <- "^[A-Z][a-z]{2}, ([0-9]{2}) ([A-Z][a-z]{2}) ([0-9]{4}) ([0-9]{2}):([0-9]{2}):([0-9]{2}) GMT$"
  parts <- regmatches(text, regexec(pattern, text))[[1L]]
  month <- match(parts[3L], month.abb)
  if (!length(parts) || is.na(month)) return(NULL)
  moment <- ISOdatetime(parts[4L], month, parts[2L], parts[5L], parts[6L], parts[7L], tz = "UTC")
  if (is.na(moment)) NULL else max(0, as.numeric(moment) - as.numeric(Sys.time()))
}

# The JSON of an answer; NULL where it is of another type. A problem is a condition.
parsed_answer <- function(answer) {
  kind <- trimws(sub(";.*$", "", text_of(answer$headers[["content-type"]])))
  is_problem <- kind == "application/problem+json"
  parsed <- NULL
  if (is_problem || kind == "application/json") {
    parsed <- tryCatch(read_json(answer$body), error = function(failed) NULL)
    if (is.null(parsed)) kind <- "malformed JSON"
  }
  if (is_problem && is_object(parsed)) stop(problem(answer$status, parsed, retry_after(answer)))
  if (answer$status < 200L || answer$status >= 300L || is_problem || kind == "malformed JSON") {
    unexpected("an answer of the service", paste("status", answer$status, "and", if (nzchar(kind)) kind else "no type"))
  }
  parsed
}

is_object <- function(value) is.list(value) && (!is.null(names(value)) || !length(value))

unexpected <- function(expected, got) fail("unexpected_answer", paste0("expected ", expected, ", got ", got))

# Keep the head of an answer, where it has one; `expected` is in the journal whose present head this is.
keep_answered <- function(directory, account, answer, parsed, expected) {
  stated <- if (is_object(parsed)) parsed else list()
  batch <- stated[["releases"]]
  if (is.list(batch) && length(batch) && is_object(batch[[length(batch)]])) stated <- batch[[length(batch)]]
  if (is_object(stated[["head"]])) stated <- stated[["head"]]
  text <- answer$headers[["x-ledger-head"]]
  if (!is.null(stated[["seq"]]) && !is.null(stated[["hash"]])) text <- head_text(stated)
  if (is.null(text)) return(invisible())
  if (!is_head(text)) unexpected("a head seq:hash", "another one")
  replayed <- identical(answer$headers[["idempotent-replay"]], "true")
  if (!is.null(expected) && head_seq(text) < head_seq(expected) && !replayed) {
    rolled_back(account, paste0("the answer's head of '", account, "' is older than the one that was expected"))
  }
  keep_head(directory, account, text)
}

# The text seq:hash of a head in an answer.
head_text <- function(head) {
  seq <- head[["seq"]]
  text <- if (is_whole(seq) && is_text(head[["hash"]])) paste0(whole_text(seq), ":", head[["hash"]])
  if (is_head(text)) text else unexpected("a head seq:hash", "another one")
}

# The idempotency key that a caller states, or a fresh one, which does not depend on R's seed.
key_of <- function(stated) {
  if (is.null(stated)) return(fresh_key())
  if (!is_text(stated) || !matches("[ -~]{1,255}", stated)) {
    refuse("expected an idempotency key of 1 to 255 printable ASCII characters")
  }
  stated
}

fresh_key <- function() {
  bytes <- as.integer(openssl::rand_bytes(16L))
  bytes[7L] <- bitwOr(bitwAnd(bytes[7L], 15L), 64L)
  bytes[9L] <- bitwOr(bitwAnd(bytes[9L], 63L), 128L)
  hex <- paste(sprintf("%02x", bytes), collapse = "")
  sub("^(.{8})(.{4})(.{4})(.{4})(.{12})$", "\\1-\\2-\\3-\\4-\\5", hex)
}

# The idempotency key of a part of a call, such as a partition.
part_key <- function(key, part) {
  paste(format(openssl::sha256(charToRaw(paste0(key, "\n", enc2utf8(part))))), collapse = "")
}

quoted <- function(text) {
  bytes <- charToRaw(enc2utf8(text))
  plain <- bytes %in% charToRaw(paste(c(letters, LETTERS, 0:9, "_", ".", "-", "~"), collapse = ""))
  paste(ifelse(plain, rawToChar(bytes, multiple = TRUE), sprintf("%%%02X", as.integer(bytes))), collapse = "")
}

unquoted <- function(text) {
  if (!matches("([^%]|%[0-9A-Fa-f]{2})*", text) || grepl("%00", text)) refuse("expected a path that is encoded")
  text <- utils::URLdecode(text)
  Encoding(text) <- "UTF-8"
  text
}

query_text <- function(query, path) {
  if (!length(query)) return("")
  begins <- if (grepl("?", path, fixed = TRUE)) "&" else "?"
  paste0(begins, paste0(vapply(names(query), quoted, ""), "=", vapply(query, quoted, ""), collapse = "&"))
}
