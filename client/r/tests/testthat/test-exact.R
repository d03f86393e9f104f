# Exact numbers: kept as text, and doubles that are not whole refused.

exact_text <- privacybudgetledger:::exact_text

test_that("an exact number is kept as it is stated", {
  for (text in c("0.10", "1e-10", "104/4099", "-0.25", "7", "1e-300", "123456789012345678901234567890.5")) {
    expect_identical(exact_text(text, "rho"), text)
  }
  expect_identical(exact_text(c(rho = "0.5"), "rho"), "0.5")
  expect_identical(exact_text(7L, "rho"), "7")
  expect_identical(exact_text(7, "rho"), "7")
  expect_identical(exact_text(-3, "rho"), "-3")
  expect_identical(exact_text(1e15, "rho"), "1000000000000000")
  expect_identical(exact_text(2^53 - 1, "rho"), "9007199254740991")
  expect_identical(exact_text(-0, "rho"), "0")
})

test_that("the options of printing change no number", {
  old <- options(scipen = -10, digits = 3, OutDec = ",")
  on.exit(options(old))
  expect_identical(exact_text(100000, "rho"), "100000")
  expect_identical(privacybudgetledger:::whole_text(c(1e15, 12345678)), c("1000000000000000", "12345678"))
})

test_that("a double that is not whole is refused and not guessed at", {
  for (value in list(0.1, 0.5, 1e-10, 2^53, 1e22, NaN, NA_real_, Inf, -Inf)) {
    expect_error(exact_text(value, "rho"), 'rho: expected an exact number as text', class = "pbl_invalid_argument")
  }
})

test_that("a value that is no number is refused", {
  values <- list(
    TRUE, NULL, NA, NA_integer_, NA_character_, c("1", "2"), 1:2, list("1"), 1i, as.raw(1), factor("1"), Sys.Date(),
    as.difftime(1, units = "secs")
  )
  for (value in values) expect_error(exact_text(value, "rho"), "rho: expected", class = "pbl_invalid_argument")
})

test_that("a text that the service would not read is refused", {
  texts <- c("", "one", "1/0", "0/00", "nan", "Inf", " 1", "1_000", "1e1000", ".5", "1/-2", "\u0663", "0x1", "1\n", "1L")
  for (text in texts) expect_error(exact_text(text, "rho"), "a number as text", class = "pbl_invalid_argument")
})

test_that("counts of a plan are whole numbers", {
  expect_identical(plan_geometric(epsilon = 1, cells = 2L), plan_geometric(epsilon = "1", cells = 2))
  for (value in list(1.5, NA, "2", 2^60, TRUE, 1:2)) {
    expect_error(plan_geometric(epsilon = 1, cells = value), "cells: expected one whole number")
  }
})

test_that("a number is written as JSON without rounding, and one that would be rounded is refused", {
  write_json <- privacybudgetledger:::write_json
  expect_identical(write_json(list(a = 2^53 - 1, b = 1e5, c = -1L)), '{"a":9007199254740991,"b":100000,"c":-1}')
  expect_identical(write_json(list(a = c(1, 2), b = I("x"), c = list(), d = NULL)), '{"a":[1,2],"b":["x"],"c":[],"d":null}')
  expect_identical(write_json("\u00e9\"\n"), '"\u00e9\\"\\n"')
  for (value in list(0.1, NA, NaN, Inf, 1e300, Sys.time(), factor("a"), data.frame(a = 1), as.POSIXlt(Sys.time()), quote(x))) {
    expect_error(write_json(list(a = value)), "expected text, whole numbers", class = "pbl_invalid_argument")
  }
})

test_that("an integer that no double has is read as text", {
  read <- privacybudgetledger:::read_json(charToRaw('{"a": 9007199254740993, "b": 9007199254740991}'))
  expect_identical(read, list(a = "9007199254740993", b = 9007199254740991))
  expect_error(privacybudgetledger:::read_json(charToRaw("DESCRIPTION")))
})
