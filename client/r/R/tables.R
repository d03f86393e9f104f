# Data frames: take their counts, and put noisy counts in their place.
#
# Only the column of counts is read and sent. No message quotes a value.

# The counts of a column as JSON texts: whole numbers, or exact numbers as text.
counts_of <- function(frame, column) {
  values <- column_of(frame, column)
  added <- setdiff(intersect(c("noisy", "moe"), names(frame)), column)
  if (length(added)) invalid_table("expected no column '", added[1L], "': the result has one")
  if (!length(values)) invalid_table("expected at least one row")
  if (length(dim(values)) > 1L) invalid_table("expected a column '", column, "' that is a vector")
  if (is_integer64(values) && isTRUE(all(abs(values) <= bit64::as.integer64("9007199254740992")))) {
    return(bit64::as.character.integer64(values))
  }
  if (are_whole(values)) return(whole_text(values))
  exact <- is.character(values) && !is.object(values) && !anyNA(values) && all(matches(exact_number, values))
  if (exact) return(sprintf('"%s"', values))
  invalid_table(
    "expected a column '", column, "' of whole numbers below 2^53, as doubles, integers or integer64, or of exact ",
    "numbers as text, none of them missing; got the type ", class(values)[1L], wrong_rows(values)
  )
}

# How many rows are missing or not whole; no message quotes a value.
wrong_rows <- function(values) {
  if (is.object(values) || !(is.integer(values) || is.double(values))) return("")
  finite <- values[is.finite(values)]
  numbers <- c(missing = sum(is.na(values)), "not whole" = sum(!is.na(values)) - sum(finite == trunc(finite)))
  wrong <- numbers[numbers > 0]
  told <- if (length(wrong)) paste0(names(wrong), ": ", wrong, collapse = ", ") else "some are too large"
  paste0(" (rows: ", length(values), ", ", told, ")")
}

texts_in <- function(frame, column) {
  values <- column_of(frame, column)
  if (is.factor(values)) values <- as.character(values)
  if (is.character(values) && !is.object(values) && !anyNA(values)) return(enc2utf8(values))
  invalid_table("expected a column '", column, "' of texts, none of them missing: they name partitions")
}

column_of <- function(frame, column) {
  if (!is.data.frame(frame)) invalid_table("expected a data frame")
  if (!is_text(column)) invalid_table("expected the name of a column")
  found <- sum(names(frame) == column)
  if (found != 1L) invalid_table("expected one column '", column, "', got ", found)
  frame[[column]]
}

invalid_table <- function(...) fail("invalid_table", paste0(...))

# A JSON array of counts that is written as it is.
counts_json <- function(counts) verbatim(paste0("[", paste(counts, collapse = ","), "]"))

# The noisy counts of an answer as texts.
noisy_texts <- function(noisy, rows) {
  is_number <- vapply(noisy, function(one) length(one) == 1L && are_whole(one, 2^53), NA)
  right <- is.list(noisy) && length(noisy) == rows && all(is_number | vapply(noisy, is_text, NA))
  if (!right) unexpected("a noisy count for each count", "another answer")
  texts <- character(rows)
  texts[is_number] <- whole_text(unlist(noisy[is_number]))
  texts[!is_number] <- unlist(noisy[!is_number])
  texts
}

# A table with columns `noisy`, in the place of its counts, and `moe`. Noisy counts have the type of the counts; those
# of a granularity are text.
with_noisy <- function(frame, column, noisy, moe, granular) {
  exact <- granular || is.character(frame[[column]])
  frame[[column]] <- if (exact) noisy else if (is_integer64(frame[[column]])) bit64::as.integer64(noisy) else doubles(noisy)
  frame[["moe"]] <- rep(if (exact) moe else as.numeric(moe), nrow(frame))
  names(frame)[match(column, names(frame))] <- "noisy"
  frame
}

doubles <- function(texts) {
  values <- as.numeric(texts)
  if (!identical(whole_text(values), texts)) {
    fail("inexact_counts", paste0(
      "expected noisy counts that doubles have exactly; they are drawn: repeat the call with the same idempotency ",
      "key and a column of counts of bit64::as.integer64"
    ))
  }
  values
}
