# Heads that a client keeps on disk.

first <- paste0("1:", strrep("0", 64))
second <- paste0("2:", strrep("1", 64))
other <- paste0("2:", strrep("2", 64))
small <- plan_discrete_gaussian(rho = "0.01")
keep_head <- privacybudgetledger:::keep_head
new_directory <- function() privacybudgetledger:::heads_directory(tempfile("heads"))

test_that("the newest head is kept", {
  directory <- privacybudgetledger:::heads_directory(file.path(tempfile(), "new", "directory"))
  expect_null(kept_head(directory, "town"))
  keep_head(directory, "town", second)
  keep_head(directory, "town", first) # of an older answer that is repeated
  expect_identical(kept_head(directory, "town"), second)
  expect_null(kept_head(directory, "village"))
  keep_head(directory, "town", paste0("10:", strrep("3", 64)))
  expect_match(kept_head(directory, "town"), "^10:")
})

test_that("a head of the same number and another hash is a rollback", {
  directory <- new_directory()
  keep_head(directory, "town", second)
  failed <- caught(keep_head(directory, "town", other), "pbl_ledger_rolled_back")
  expect_match(conditionMessage(failed), "another hash")
  expect_identical(kept_head(directory, "town"), second)
})

test_that("a damaged file is a condition and not a first use", {
  texts <- c("", "{", "[]", "{}", '{"head": 1}', '{"head": "1:abc"}', '"head"', '{"head": null}')
  for (text in texts) {
    directory <- new_directory()
    path <- file.path(directory, "town.json")
    cat(text, file = path)
    failed <- caught(kept_head(directory, "town"), "pbl_unreadable_head")
    expect_match(conditionMessage(failed), "town.json", fixed = TRUE)
    caught(keep_head(directory, "town", second), "pbl_unreadable_head")
    expect_identical(rawToChar(readBin(path, "raw", 100)), text)
  }
})

test_that("a file that cannot be read is a condition", {
  directory <- new_directory()
  dir.create(file.path(directory, "town.json"))
  caught(kept_head(directory, "town"), "pbl_unreadable_head")
})

test_that("no name leaves the directory", {
  above <- paste("..", "town", sep = "/")
  directory <- file.path(tempfile("around"), "heads")
  privacybudgetledger:::heads_directory(directory)
  keep_head(directory, above, first)
  keep_head(directory, ".", second)
  expect_identical(kept_head(directory, above), first)
  expect_identical(kept_head(directory, "."), second)
  expect_identical(list.files(dirname(directory), all.files = TRUE, no.. = TRUE), "heads")
})

test_that("heads are for their owner alone", {
  skip_on_os("windows")
  directory <- new_directory()
  keep_head(directory, "town", first)
  modes <- file.mode(c(directory, file.path(directory, "town.json")))
  expect_identical(format(modes), c("700", "600"))
})

test_that("a write that fails leaves nothing behind", {
  directory <- new_directory()
  path <- file.path(directory, "town.json")
  dir.create(path)
  failed <- caught(privacybudgetledger:::write_whole(directory, path, "{}"), "pbl_head_not_kept")
  expect_match(conditionMessage(failed), "cannot be written")
  expect_identical(list.files(directory, all.files = TRUE, no.. = TRUE), "town.json")
})

test_that("a client keeps the heads that it sees", {
  directory <- tempfile("heads")
  ledger <- connected(heads = directory)
  name <- opened(ledger)
  opening <- account(connected(), name)$head
  expect_identical(kept_head(directory, name), opening)
  made <- register(ledger, name, name = "table", plan = small)
  expect_identical(kept_head(directory, name), made$head)
  register(ledger, name, name = "not yet", plan = small, dry_run = TRUE)
  drawn <- draw(ledger, name, data.frame(count = 1), name = "drawn", mechanism = small)
  expect_identical(kept_head(directory, name), drawn$head)
  batch <- register_batch(ledger, name, list(new_release("a", small), new_release("b", small)))
  expect_identical(kept_head(directory, name), batch[[2]]$head)
})

test_that("a ledger without the kept head is refused, and nothing is charged", {
  plain <- connected()
  name <- opened(plain)
  directory <- new_directory()
  keep_head(directory, name, paste0("7:", strrep("0", 64)))
  ledger <- connected(heads = directory)
  failed <- caught(register(ledger, name, name = "table", plan = small), "pbl_ledger_rolled_back")
  expect_identical(failed$account, name)
  caught(account(ledger, name), "pbl_ledger_rolled_back")
  expect_match(account(plain, name)$head, "^1:")
  expect_match(kept_head(directory, name), "^7:")
})

test_that("answers that may be older are no rollback", {
  directory <- tempfile("heads")
  ledger <- connected(heads = directory)
  name <- opened(ledger)
  one <- register(ledger, name, name = "first", plan = small, idempotency_key = paste(name, "first"))
  two <- register(ledger, name, name = "second", plan = small)
  again <- register(ledger, name, name = "first", plan = small, idempotency_key = paste(name, "first"))
  expect_identical(again$head, one$head)
  expect_identical(release(ledger, name, one$id)$head, one$head)
  send_request(ledger, "GET", paste0("/v1/accounts/", name, "/balance?as_of=1"))
  expect_identical(kept_head(directory, name), two$head)
})

test_that("an answer with an older head than the expected one is a rollback", {
  old <- sprintf('{"name": "town", "state": "open", "remaining": {}, "head": {"seq": 1, "hash": "%s"}}', strrep("0", 64))
  calls <- list(
    function(ledger) account(ledger, "town"),
    function(ledger) send_request(ledger, "GET", "/v1/accounts/town/history?points=2"),
    function(ledger) send_request(ledger, "POST", "/v1/accounts/town/releases", json = list(), idempotency_key = "mine")
  )
  for (call in calls) {
    directory <- new_directory()
    keep_head(directory, "town", second)
    ledger <- faulty(answered(200, old), heads = directory, address = "http://127.0.0.1:9")
    failed <- caught(call(ledger), "pbl_ledger_rolled_back")
    expect_match(conditionMessage(failed), "older than the one that was expected")
    expect_identical(kept_head(directory, "town"), second)
  }
})
