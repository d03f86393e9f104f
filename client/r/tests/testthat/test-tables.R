# Data frames: counts are taken from a column, and noisy counts come in its place.

noise <- plan_geometric(epsilon = "0.001")
rows <- data.frame(state = c("01", "02", "36", "48"), count = c(987654321, 0, 5, -3), share = c(0.5, NA, 0.1, 0.2))
whole_message <- "expected a column 'count' of whole numbers"

test_that("noisy counts come in the place of the counts, with their margin", {
  ledger <- connected()
  name <- opened(ledger)
  drawn <- draw(ledger, name, rows, name = "table", mechanism = noise)
  expect_s3_class(drawn$frame, "data.frame")
  expect_named(drawn$frame, c("state", "noisy", "share", "moe"))
  expect_identical(drawn$frame[c("state", "share")], rows[c("state", "share")])
  expect_type(drawn$frame$noisy, "double")
  expect_false(identical(drawn$frame$noisy, rows$count)) # all four noises are 0 with a probability below 1e-13
  expect_true(all(abs(drawn$frame$noisy - rows$count) < 1e5))
  stored <- send_request(ledger, "GET", paste0("/v1/accounts/", name, "/draws/", drawn$draws))
  expect_equal(unlist(stored$noisy), drawn$frame$noisy)
  expect_identical(unique(drawn$frame$moe), as.numeric(stored$margin_of_error$moe))
  expect_identical(drawn$confidence, 0.95)
  expect_identical(as.data.frame(drawn), drawn$frame)
})

test_that("integers and integer64 are drawn like doubles", {
  ledger <- connected()
  name <- opened(ledger)
  expect_type(draw(ledger, name, data.frame(count = 1:3), name = "t", mechanism = noise)$frame$noisy, "double")
  skip_if_not_installed("bit64")
  large <- bit64::as.integer64(c("9007199254730001", "-9007199254730003"))
  noisy <- draw(ledger, name, data.frame(count = large), name = "t", mechanism = plan_geometric(epsilon = 1))$frame$noisy
  expect_s3_class(noisy, "integer64")
  expect_true(all(abs(noisy - large) < 500))
})

test_that("the counts of a table are drawn in its own order", {
  ledger <- connected()
  name <- opened(ledger)
  counted <- as.data.frame(table(town = rep(c("B", "A"), c(5000, 100))))
  drawn <- draw(ledger, name, counted, name = "t", mechanism = plan_geometric(epsilon = 1), count = "Freq")
  expect_named(drawn$frame, c("town", "noisy", "moe"))
  expect_identical(drawn$frame$town, counted$town)
  expect_true(all(abs(drawn$frame$noisy - c(100, 5000)) < 100))
})

test_that("with a granularity noisy counts are exact numbers as text", {
  ledger <- connected()
  name <- opened(ledger)
  half <- plan_discrete_gaussian(sigma_squared = 100, sensitivity = "0.5", granularity = "0.5")
  drawn <- draw(ledger, name, data.frame(count = c("0.5", "31/2")), name = "halves", mechanism = half, granularity = "1/2")
  expect_match(drawn$frame$noisy, "^-?[0-9]+\\.[05]$")
  expect_type(draw(ledger, name, data.frame(count = 1:2), name = "h", mechanism = half)$frame$noisy, "character")
})

test_that("a column that is no column of counts is refused before anything is sent", {
  ledger <- connect_ledger("http://127.0.0.1:9", "key", retries = retry_rules(1))
  columns <- list(
    c(1.5, 12345), c(1, NA), c(1L, NA), c(1, Inf), c(1, NaN), c(TRUE, FALSE), c("1", "x12345"), factor(c("1", "2")),
    c(1, 2^53), c(1i, 2i), Sys.Date() + 0:1
  )
  for (values in columns) {
    failed <- caught(draw(ledger, "town", data.frame(count = values), name = "t", mechanism = noise), "pbl_invalid_table")
    expect_match(conditionMessage(failed), whole_message, fixed = TRUE)
    expect_no_match(conditionMessage(failed), "12345")
  }
  wrong <- data.frame(count = c(1.5, NA, 3, Inf))
  expect_error(
    draw(ledger, "town", wrong, name = "t", mechanism = noise),
    "got the type numeric (rows: 4, missing: 1, not whole: 2)", fixed = TRUE, class = "pbl_invalid_table"
  )
  skip_if_not_installed("bit64")
  missing <- data.frame(count = bit64::as.integer64(c(1, NA)))
  expect_error(draw(ledger, "town", missing, name = "t", mechanism = noise), whole_message, class = "pbl_invalid_table")
})

test_that("a table that cannot be drawn is refused", {
  ledger <- connect_ledger("http://127.0.0.1:9", "key", retries = retry_rules(1))
  twice <- stats::setNames(data.frame(1, 2), c("count", "count"))
  frames <- list(
    "expected a data frame" = list(count = 1), "expected one column 'count', got 0" = data.frame(persons = 1),
    "expected one column 'count', got 2" = twice, "expected no column 'noisy'" = data.frame(count = 1, noisy = 1),
    "expected no column 'moe'" = data.frame(count = 1, moe = 1), "at least one row" = data.frame(count = numeric())
  )
  for (message in names(frames)) {
    failed <- caught(draw(ledger, "town", frames[[message]], name = "t", mechanism = noise), "pbl_invalid_table")
    expect_match(conditionMessage(failed), message, fixed = TRUE)
  }
  wide <- data.frame(state = c("01", "02"))
  wide$count <- matrix(1:4, 2)
  failed <- caught(draw(ledger, "town", wide, name = "t", mechanism = noise), "pbl_invalid_table")
  expect_match(conditionMessage(failed), "that is a vector")
  for (column in list(c(1, 2), c("01", NA), NA)) {
    frame <- data.frame(state = column, count = 1:2)
    expect_error(draw_partitions(ledger, "t", "id", frame, mechanism = "c", by = "state"), "of texts")
  }
})

test_that("only the counts are sent, and the same ones again", {
  ledger <- faulty(answer_lost)
  name <- opened(connected())
  draw(ledger, name, rows, name = "table", mechanism = noise)
  bodies <- vapply(ledger$seen(), function(call) call$body, "")
  expect_identical(bodies[1], bodies[2])
  expect_identical(jsonlite::fromJSON(bodies[1]), list(
    name = "table", mechanism = list(type = "geometric", epsilon = "0.001"), counts = c(987654321L, 0L, 5L, -3L)
  ))
})

test_that("an answer without noisy counts is unexpected", {
  head <- sprintf('"head": {"seq": 1, "hash": "%s"}', strrep("0", 64))
  terms <- '"release": "a", "draw": "b", "mechanism": {}, "margin_of_error": {"confidence": 0.95, "moe": 1}'
  for (noisy in c("[]", "[1, 2]", "null", "[1.5]", "[null]", "1", "[[1]]")) {
    ledger <- faulty(answered(201, sprintf('{%s, %s, "noisy": %s}', terms, head, noisy)), address = "http://127.0.0.1:9")
    caught(draw(ledger, "town", data.frame(count = 1), name = "t", mechanism = noise), "pbl_unexpected_answer")
  }
})

test_that("noisy counts beyond 2^53 are not rounded", {
  head <- sprintf('"head": {"seq": 1, "hash": "%s"}', strrep("0", 64))
  body <- paste0(
    '{"release": "a", "draw": "b", "mechanism": {}, "margin_of_error": {"confidence": 0.95, "moe": 1}, ', head,
    ', "noisy": [9007199254740993]}'
  )
  answer <- answered(201, body)
  wanted <- function(count) {
    ledger <- faulty(answer, address = "http://127.0.0.1:9")
    draw(ledger, "town", data.frame(count = count), name = "t", mechanism = noise, idempotency_key = "mine")
  }
  expect_identical(caught(wanted(2^53 - 1), "pbl_inexact_counts")$idempotency_key, "mine")
  skip_if_not_installed("bit64")
  noisy <- wanted(bit64::as.integer64("9007199254740992"))$frame$noisy
  expect_identical(bit64::as.character.integer64(noisy), "9007199254740993")
})

test_that("no count is shown", {
  old <- options(httr2_verbosity = 3)
  on.exit(options(old))
  ledger <- faulty(answer_lost)
  name <- opened(connected())
  shown <- utils::capture.output(
    {
      drawn <- draw(ledger, name, rows, name = "table", mechanism = noise)
      print(drawn)
      print(ledger)
    },
    type = "output"
  )
  said <- paste(shown, collapse = "\n")
  expect_no_match(said, "987654321")
  expect_no_match(said, format(drawn$frame$noisy[1], scientific = FALSE))
  failed <- caught(
    draw(faulty(answer_lost, attempts = 1), name, rows, name = "table", mechanism = noise), "pbl_connection_failed"
  )
  expect_no_match(paste(deparse(unclass(failed)), collapse = ""), "987654321")
  expect_null(failed$parent)
})
