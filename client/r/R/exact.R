# Exact numbers: the texts that the service reads without rounding, and whole numbers.

exact_number <- "-?[0-9]+(\\.[0-9]+)?([eE][+-]?[0-9]{1,3})?|-?[0-9]+/[0-9]*[1-9][0-9]*"
largest_whole <- 2^53 - 1 # R reads 2^53 + 1 as 2^53: beyond this, a double need not be the number that was typed

# The text of an exact number. A double is one only where it is whole: 0.1 as a double is another number than 1/10.
exact_text <- function(value, what) {
  if (is_text(value)) {
    if (matches(exact_number, value)) return(enc2utf8(unname(value)))
    refuse(what, ': expected a number as text, such as "0.1", "1e-10" or "104/4099"')
  }
  if (is_whole(value)) return(whole_text(value))
  if (is.double(value) && !is.object(value) && length(value) == 1L) {
    refuse(what, ': expected an exact number as text, such as "0.1", got a double that is not a whole number below 2^53')
  }
  refuse(what, ': expected one exact number, such as "0.1" or 7')
}

# A whole number as a double, so that plans that mean the same are identical.
whole_number <- function(value, what) {
  if (!is_whole(value)) refuse(what, ": expected one whole number below 2^53")
  as.numeric(value)
}

is_text <- function(value) is.character(value) && !is.object(value) && length(value) == 1L && !is.na(value)

is_whole <- function(value) length(value) == 1L && are_whole(value)

# Whether a vector has whole numbers only, none of them missing, that doubles have exactly.
are_whole <- function(values, largest = largest_whole) {
  numbers <- (is.integer(values) || is.double(values)) && !is.object(values)
  numbers && all(is.finite(values)) && all(abs(values) <= largest) && all(values == trunc(values))
}

whole_text <- function(values) sprintf("%.0f", as.numeric(values) + 0) # never -0

# Whether texts match a pattern from their first character to their last: `$` would also accept a line end.
matches <- function(pattern, texts) grepl(paste0("\\A(?:", pattern, ")\\z"), texts, perl = TRUE)

is_integer64 <- function(values) inherits(values, "integer64") && requireNamespace("bit64", quietly = TRUE)
