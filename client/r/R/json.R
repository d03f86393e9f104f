# JSON whose numbers are never rounded: only whole numbers are written, and large ones are read as text.

write_json <- function(value) {
  text <- jsonlite::toJSON(prepared(value), auto_unbox = TRUE, null = "null", json_verbatim = TRUE)
  enc2utf8(as.character(text))
}

# An R value in the form that is written: a vector of one element is a value, a list or I() is an array.
prepared <- function(value) {
  if (is.null(value) || inherits(value, "json")) return(value)
  as_it_is <- inherits(value, "AsIs")
  if (as_it_is) value <- unclass(value)
  if (is.list(value) && !is.object(value)) return(lapply(value, prepared))
  if (!is.atomic(value)) refuse_json()
  alone <- length(value) == 1L && !as_it_is
  if (is.object(value) || anyNA(value)) refuse_json()
  written <- if (is.character(value) || is.logical(value)) {
    as.list(if (is.character(value)) enc2utf8(value) else value)
  } else if (are_whole(value)) {
    lapply(whole_text(value), verbatim)
  } else {
    refuse_json()
  }
  if (alone) written[[1L]] else unname(written)
}

refuse_json <- function() {
  refuse('expected text, whole numbers, TRUE, FALSE, NULL or lists of them; write other numbers as text, such as "0.1"')
}

verbatim <- function(text) structure(text, class = "json")

# The value of a JSON text. An integer that no double has is text.
read_json <- function(bytes) {
  text <- rawToChar(bytes)
  if (!validUTF8(text)) stop("expected UTF-8")
  Encoding(text) <- "UTF-8"
  jsonlite::parse_json(text, simplifyVector = FALSE, bigint_as_char = TRUE)
}
