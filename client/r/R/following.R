# An account's journal as it grows: the service's events, entry by entry.
#
# curl reads the stream: httr2 waits until a whole buffer is full, and takes a refusal for a failed connection.

silence <- 60L # seconds after which a stream without a byte is lost: the service sends a comment every 15 seconds
events <- "text/event-stream"
event_end <- charToRaw("\n\n")

follow_journal <- function(ledger, account, each, ..., after = 0) {
  named_only(...)
  if (!inherits(ledger, "pbl_ledger")) refuse("expected a ledger, as connect_ledger() returns it")
  if (!is.function(each)) refuse("each: expected a function of an entry")
  if (!is_whole(after) || after < 0) refuse("after: expected the number of an entry, or 0")
  last <- after
  failed <- 0
  going_on <- TRUE
  take <- function(text) {
    entry <- entry_of(text)
    if (is.null(entry) || !going_on) return(going_on)
    if (entry$seq != last + 1) {
      unexpected(paste("entry", whole_text(last + 1), "of the journal"), paste("entry", whole_text(entry$seq)))
    }
    going_on <<- !isFALSE(each(entry))
    last <<- entry$seq
    failed <<- 0
    going_on
  }
  while (going_on) {
    query <- list(after = whole_text(last))
    headers <- list(Accept = paste0(events, ", application/problem+json;q=0.1"))
    call <- list(method = "GET", path = path_to(account, "journal"), query = query, headers = headers)
    answer <- ledger$stream(ledger, call, take)
    has_ended <- isTRUE(answer$status == 200L) && is_stream(answer) # as the service ends streams now and then
    if (!has_ended) failed <- failed + 1
    if (going_on) Sys.sleep(if (has_ended) ledger$retries$shortest else pause_of_stream(ledger, call, answer, failed))
  }
  invisible(last)
}

# The pause after a connection that broke off, or another answer; a condition where a further request would not help.
pause_of_stream <- function(ledger, call, answer, failed) {
  lost <- is.null(answer$status)
  is_busy <- !lost && answer$status %in% busy
  pause <- if (lost || is_busy) pause_after(ledger$retries, failed, if (is_busy) retry_after(answer))
  if (!is.null(pause)) return(pause)
  if (lost) fail("connection_failed", paste0("no answer to GET ", call$path, ": ", answer$reason))
  parsed_answer(answer) # a problem is a condition
  unexpected("a stream of events", paste("status", answer$status))
}

# Read a stream and pass on the text of each of its events, until `take` returns FALSE; the bytes of another answer are
# its body. As in perform(), the result has no status where the connection failed.
stream <- function(ledger, call, take) {
  handle <- curl::new_handle(
    connecttimeout = 30L, low_speed_limit = 1L, low_speed_time = silence, followlocation = FALSE, path_as_is = TRUE,
    useragent = paste0("privacybudgetledger-r/", version())
  )
  key <- paste("Bearer", key_for(ledger))
  curl::handle_setheaders(handle, .list = c(call$headers, Authorization = key))
  address <- paste0(ledger$address, call$path, query_text(call$query, call$path))
  kept <- raw()
  streams <- NULL # whether the answer is a stream of events; known with the first bytes
  thrown <- NULL
  enough <- simpleError("the caller has enough")
  read <- function(bytes) {
    kept <<- c(kept, bytes)
    if (is.null(streams)) streams <<- is_stream(answer_so_far(handle))
    while (streams && length(end <- grepRaw(event_end, kept, fixed = TRUE))) {
      text <- rawToChar(kept[seq_len(end - 1L)])
      kept <<- kept[-seq_len(end + 1L)]
      Encoding(text) <- "UTF-8"
      if (!take(text)) stop(enough)
    }
  }
  note <- function(failed) {
    thrown <<- failed
    stop(failed)
  }
  tryCatch(
    {
      curl::curl_fetch_stream(address, function(bytes) tryCatch(read(bytes), error = note), handle)
      answer <- answer_so_far(handle)
      answer$body <- kept
      answer
    },
    error = function(failed) {
      if (!is.null(thrown) && !identical(thrown, enough)) stop(thrown) # of the caller's own function, or of an entry
      list(reason = conditionMessage(failed))
    }
  )
}

answer_so_far <- function(handle) {
  found <- curl::handle_data(handle)
  answer_of(found$status_code, curl::parse_headers_list(found$headers))
}

is_stream <- function(answer) startsWith(text_of(answer$headers[["content-type"]]), events)

# The entry of an event; NULL of a comment, and of the event that states the pause.
entry_of <- function(text) {
  lines <- strsplit(text, "\n", fixed = TRUE)[[1L]]
  data <- sub("^data: ", "", lines[startsWith(lines, "data: ")])
  if (!length(data)) return(NULL)
  item <- tryCatch(read_json(charToRaw(paste0(data, collapse = ""))), error = function(failed) NULL)
  entry <- if (is_object(item)) item[["entry"]]
  is_entry <- is_object(entry) && is_whole(entry[["seq"]]) && is_text(entry[["kind"]]) && is_text(item[["hash"]])
  if (!is_entry || !is_text(item[["previous"]])) unexpected("an entry of a journal", "another document")
  list(seq = as.numeric(entry$seq), kind = entry$kind, hash = item$hash, previous = item$previous, document = item)
}
