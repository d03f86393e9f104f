# Attempts, pauses and idempotency keys, on connections that fail.

small <- plan_discrete_gaussian(rho = "0.01")
problem_kind <- "application/problem+json"
busy_with <- function(status) {
  code <- if (status == 429) "too_many_requests" else "unavailable"
  answered(status, sprintf('{"type": "/problems/%s", "title": "Busy"}', code), problem_kind)
}
listed <- function(ledger, name) send_request(ledger, "GET", paste0("/v1/accounts/", name, "/releases"))$items
keys_of <- function(ledger) lapply(ledger$seen(), function(call) call$headers[["idempotency-key"]])

test_that("a request is sent again with its key and charged once", {
  for (fault in c(refused, answer_lost, lapply(c(429, 502, 503, 504), busy_with), answered(503, kind = ""))) {
    ledger <- faulty(fault, fault)
    name <- opened(connected())
    made <- register(ledger, name, name = "table", plan = small)
    expect_length(ledger$seen(), 3)
    expect_length(unique(keys_of(ledger)), 1)
    expect_identical(vapply(listed(ledger, name), function(one) one$id, ""), made$id)
  }
})

test_that("each call has a key of its own unless it states one, whatever R's seed", {
  ledger <- faulty()
  name <- opened(connected())
  ids <- vapply(1:2, function(number) {
    set.seed(1)
    register(ledger, name, name = "table", plan = small)$id
  }, "")
  stated <- paste(name, "mine")
  mine <- vapply(1:2, function(number) register(ledger, name, name = "t", plan = small, idempotency_key = stated)$id, "")
  account(ledger, name)
  keys <- keys_of(ledger)
  expect_false(identical(keys[[1]], keys[[2]]))
  expect_match(unlist(keys[1:2]), "^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$")
  expect_identical(keys[3:5], list(stated, stated, NULL))
  expect_length(unique(c(ids, mine)), 3)
})

test_that("attempts leave R's seed as it is", {
  set.seed(7)
  before <- .Random.seed
  ledger <- faulty(refused, address = "http://127.0.0.1:9", attempts = 1)
  caught(account(ledger, "town"))
  privacybudgetledger:::pause_after(retry_rules(), 1)
  expect_identical(.Random.seed, before)
})

test_that("after all attempts the condition has the key with which to continue", {
  ledger <- faulty(answer_lost, answer_lost, answer_lost, attempts = 3)
  name <- opened(connected())
  failed <- caught(register(ledger, name, name = "table", plan = small), "pbl_connection_failed")
  expect_match(conditionMessage(failed), "no answer to POST .*reset by peer")
  expect_length(ledger$seen(), 3)
  register(ledger, name, name = "table", plan = small, idempotency_key = failed$idempotency_key)
  expect_length(listed(ledger, name), 1)
})

test_that("no service is a condition, and so is a busy one in the end", {
  nowhere <- connect_ledger("http://127.0.0.1:9", "key", retries = retry_rules(2, 0.001))
  caught(account(nowhere, "town"), "pbl_connection_failed")
  ledger <- faulty(busy_with(503), busy_with(503), attempts = 2)
  caught(account(ledger, "town"), "pbl_unavailable")
  expect_length(ledger$seen(), 2)
})

test_that("other answers end the attempts", {
  for (status in c(302, 400, 403, 409, 500)) {
    ledger <- faulty(answered(status, "<html>12345</html>", "text/html"))
    failed <- caught(send_request(ledger, "POST", "/v1/compositions", json = list()), "pbl_unexpected_answer")
    expect_match(conditionMessage(failed), sprintf("got status %d and text/html", status))
    expect_no_match(conditionMessage(failed), "12345")
    expect_length(ledger$seen(), 1)
  }
})

test_that("a malformed answer is an unexpected answer", {
  for (body in c("", "{", "[1]", "\xff")) {
    caught(account(faulty(answered(400, body, problem_kind)), "town"), "pbl_unexpected_answer")
  }
  failed <- caught(account(faulty(answered(200, "{")), "town"), "pbl_unexpected_answer")
  expect_match(conditionMessage(failed), "malformed JSON")
})

test_that("a proxy's success is an unexpected answer with the key", {
  answers <- list(answered(200, "<html>sign in</html>", "text/html"), answered(200, "{}"), answered(200, "[]"))
  for (answer in answers) {
    ledger <- faulty(answer, answer, answer, answer)
    frame <- data.frame(count = 1)
    calls <- list(
      function() register(ledger, "town", name = "t", plan = small, idempotency_key = "mine"),
      function() register_batch(ledger, "town", list(new_release("t", small)), idempotency_key = "mine"),
      function() draw(ledger, "town", frame, name = "t", mechanism = small, idempotency_key = "mine")
    )
    for (call in calls[-2]) expect_identical(caught(call(), "pbl_unexpected_answer")$idempotency_key, "mine")
    caught(calibrate(ledger, "geometric", moe = 6), "pbl_unexpected_answer")
  }
})

test_that("a key that no header holds, and an address with a password, are refused and not shown", {
  for (key in c("pbl_secret\n", "", "pbl secret", "pbl_s\u00e9cret")) {
    failed <- caught(connect_ledger("http://127.0.0.1:9", key), "pbl_invalid_argument")
    expect_no_match(conditionMessage(failed), "cret")
  }
  failed <- caught(connect_ledger("https://user:secret@ledger.example", "pbl_key"), "pbl_invalid_argument")
  expect_no_match(conditionMessage(failed), "secret")
  for (address in list("gopher://127.0.0.1", "127.0.0.1", "http://", "http://x/?a=1", 1, NA_character_)) {
    expect_error(connect_ledger(address, "key"), "expected an address", class = "pbl_invalid_argument")
  }
})

test_that("the key is read from the environment", {
  old <- Sys.getenv("PBL_KEY", NA)
  on.exit(if (is.na(old)) Sys.unsetenv("PBL_KEY") else Sys.setenv(PBL_KEY = old))
  Sys.setenv(PBL_KEY = Sys.getenv("KEY"))
  expect_identical(send_request(connect_ledger(address_of_service()), "GET", "/v1/principal")$role, "steward")
  Sys.unsetenv("PBL_KEY")
  expect_error(connect_ledger("http://127.0.0.1:9"), "in PBL_KEY")
})

test_that("the key is never shown and never saved", {
  ledger <- connect_ledger("http://127.0.0.1:9", "pbl_secret", retries = retry_rules(1))
  shown <- utils::capture.output(print(ledger), str(ledger), dput(ledger), print(unclass(ledger)))
  expect_no_match(shown, "pbl_secret", fixed = TRUE)
  expect_no_match(rawToChar(serialize(ledger, NULL, ascii = TRUE)), "pbl_secret", fixed = TRUE)
  expect_no_match(conditionMessage(caught(account(ledger, "town"))), "pbl_secret", fixed = TRUE)
  expect_output(print(ledger), "<ledger at http://127.0.0.1:9>", fixed = TRUE)
  disconnect(ledger)
  expect_error(account(ledger, "town"), "expected a connected ledger")
})

test_that("an idempotency key that the service refuses is not replaced", {
  ledger <- connect_ledger("http://127.0.0.1:9", "key")
  frame <- data.frame(county = "a", count = 1)
  for (key in list("", "\u00e9", "a\nb", strrep("x", 256), NA_character_, 1)) {
    expect_error(register(ledger, "t", name = "t", plan = small, idempotency_key = key), "1 to 255 printable")
    expect_error(
      draw_partitions(ledger, "t", "id", frame, mechanism = "m", by = "county", idempotency_key = key),
      "1 to 255 printable"
    )
  }
})

test_that("the key is sent to no other address", {
  ledger <- connect_ledger("http://127.0.0.1:9", "key")
  for (path in c("https://elsewhere.example/v1", "//elsewhere.example/v1", "v1/principal", "", "/v1/a b", "/v1\n")) {
    expect_error(send_request(ledger, "GET", path), "expected a path such as /v1/principal")
  }
})

test_that("a path is encoded, and may have a query", {
  ledger <- connect_ledger("http://127.0.0.1:9", "key", retries = retry_rules(1))
  for (name in c("100%", "%zz", "a%00")) {
    expect_error(send_request(ledger, "GET", paste0("/v1/accounts/", name)), "expected a path that is encoded")
  }
  ledger <- connected()
  name <- opened(ledger)
  path <- paste0("/v1/accounts/", name, "/releases")
  register(ledger, name, name = "a & b", plan = small)
  register(ledger, name, name = "c", plan = small)
  found <- send_request(ledger, "GET", paste0(path, "?limit=5"), query = list(name = "a & b"))
  expect_identical(vapply(found$items, function(one) one$name, ""), "a & b")
})

test_that("pauses double within their jitter, and are as long as the service asks for", {
  pause <- privacybudgetledger:::pause_after
  slow <- retry_rules(jitter = function() 0)
  fast <- retry_rules(jitter = function() 1)
  expect_identical(lapply(1:6, function(attempt) pause(slow, attempt)), list(0.5, 1, 2, 4, 8, NULL))
  expect_identical(lapply(1:6, function(attempt) pause(fast, attempt)), list(0.25, 0.5, 1, 2, 4, NULL))
  expect_identical(pause(retry_rules(20, jitter = function() 0), 15), 60)
  for (number in 1:50) expect_true(pause(retry_rules(), 1) >= 0.25 && pause(retry_rules(), 1) <= 0.5)
  expect_identical(pause(slow, 1, 7), 7)
  expect_identical(pause(slow, 4, 1), 4)
  expect_null(pause(slow, 1, 61)) # longer than the longest: give up at once
  expect_error(retry_rules(attempts = 0), "attempts")
  expect_error(retry_rules(shortest = -1), "shortest")
})

test_that("Retry-After is read as seconds from now, or as a date in any locale", {
  retry_after <- function(text) privacybudgetledger:::retry_after(answer_of(503, list("Retry-After" = text)))
  answer_of <- privacybudgetledger:::answer_of
  expect_identical(retry_after("7"), 7)
  expect_identical(retry_after("0"), 0)
  expect_identical(retry_after("Wed, 21 Oct 2020 07:28:00 GMT"), 0)
  for (text in c("-1", "soon", "Wed, 99 Oct 2020 07:28:00 GMT", "Wed, 21 Okt 2020 07:28:00 GMT", "\u0663", "")) {
    expect_null(retry_after(text))
  }
  now <- as.POSIXlt(Sys.time() + 30, tz = "UTC")
  date <- sprintf("Fri, %02d %s %d %s GMT", now$mday, month.abb[now$mon + 1], now$year + 1900, format(now, "%H:%M:%S"))
  expect_true(retry_after(date) > 25 && retry_after(date) <= 30)
})

test_that("the pause that the service names is waited for", {
  ledger <- faulty(answered(429, "", "", "Retry-After" = "1"))
  started <- Sys.time()
  send_request(ledger, "GET", "/v1/principal")
  expect_gte(as.numeric(Sys.time() - started, units = "secs"), 1)
})
