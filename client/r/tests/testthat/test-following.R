# The journal of an account, entry by entry, on a running service and on connections that fail.

numbers_after <- function(ledger, name, after, number, during = function(entry) NULL) {
  seen <- numeric()
  last <- follow_journal(ledger, name, after = after, function(entry) {
    seen <<- c(seen, entry$seq)
    during(entry)
    length(seen) < number
  })
  expect_identical(last, seen[length(seen)])
  seen
}
small <- plan_discrete_gaussian(rho = "0.001")
event <- function(seq) {
  entry <- sprintf('{"entry": {"seq": %d, "kind": "drawn"}, "previous": "a", "hash": "b"}', seq)
  paste0("id: ", seq, "\nevent: drawn\ndata: ", entry)
}
# A ledger whose streams are these, one after the other: texts of events, or a fault.
streaming <- function(...) {
  streams <- list(...)
  ledger <- connect_ledger("http://127.0.0.1:9", "key", retries = retry_rules(3, 0.001))
  ledger$stream <- function(ledger, call, take) {
    now <- streams[[1L]]
    streams <<- streams[-1L]
    if (is.list(now)) return(now)
    for (text in now) if (!take(text)) return(list(reason = "enough"))
    privacybudgetledger:::answer_of(200L, list("Content-Type" = "text/event-stream"))
  }
  ledger
}

test_that("entries come in order, and those that are written meanwhile", {
  ledger <- connected()
  name <- opened(ledger)
  register(ledger, name, name = "Zürich, \u65e5\u672c", plan = small)
  names <- character()
  seen <- numbers_after(ledger, name, 0, 4, function(entry) {
    names <<- c(names, entry$document$entry$content$name)
    if (entry$seq >= 2) register(ledger, name, name = "another", plan = small)
  })
  expect_identical(seen, c(1, 2, 3, 4))
  expect_identical(names, c("Zürich, \u65e5\u672c", "another", "another"))
  expect_identical(numbers_after(ledger, name, 2, 2), c(3, 4))
})

test_that("a refusal and the caller's own error are conditions", {
  ledger <- connected()
  never <- function(entry) stop("my own")
  refused <- caught(follow_journal(ledger, "no-such-account", never), "pbl_not_found")
  caught(follow_journal(ledger, opened(ledger), never, after = 1e6), "pbl_ledger_rolled_back")
  expect_identical(refused$status, 404L)
  expect_error(follow_journal(ledger, opened(ledger), never), "my own")
  for (wrong in list(-1, 1.5, "x")) expect_error(follow_journal(ledger, "town", never, after = wrong), "after: expected")
  expect_error(follow_journal(ledger, "town", "no function"), "each: expected")
})

test_that("it goes on after the last entry where a stream ends or breaks off", {
  busy <- privacybudgetledger:::answer_of(503L, list("Content-Type" = "text/plain"))
  ledger <- streaming(c("retry: 3000", event(1)), list(reason = "reset"), c(":", event(2)), busy, event(3))
  expect_identical(numbers_after(ledger, "town", 0, 3), c(1, 2, 3))
  lost <- list(reason = "refused")
  expect_match(conditionMessage(caught(numbers_after(streaming(lost, lost, lost), "town", 0, 1))), "no answer to GET")
})

test_that("another entry than the next one, and another document, are refused", {
  for (texts in list(event(2), "data: {}", "data: [", 'data: {"entry": {"seq": "1"}}')) {
    caught(numbers_after(streaming(texts), "town", 0, 1), "pbl_unexpected_answer")
  }
  answer <- privacybudgetledger:::answer_of(200L, list("Content-Type" = "text/html"))
  caught(numbers_after(streaming(answer), "town", 0, 1), "pbl_unexpected_answer")
})
