# The operations on a running service.

small <- plan_discrete_gaussian(rho = "0.01")
county <- plan_geometric(name = "county", epsilon = "0.5", partitions = c("01", "02", "36"))
counties <- data.frame(state = c("36", "01", "36", "02", "01"), count = c(5000, 100, 6000, 300, 200))

test_that("a release is registered as it is stated", {
  ledger <- connected()
  name <- opened(ledger)
  plan <- plan_sequence(small, plan_repeat(3, plan_discrete_gaussian(rho = "1/300")))
  made <- register(ledger, name, name = "tables", plan = plan, tags = "pl94", delta = "1e-9")
  expect_identical(list(made$account, made$name, made$state), list(name, "tables", "committed"))
  expect_identical(made$remaining, list(definition = "zcdp", rho = 0.48))
  expect_identical(made$document$tags, list("pl94"))
  expect_match(made$head, "^2:")
  expect_identical(release(ledger, name, made$id)$id, made$id)
  expect_output(print(made), "committed: tables>", fixed = TRUE)
  expect_output(print(account(ledger, name)), "open>", fixed = TRUE)
})

test_that("a dry run changes nothing", {
  ledger <- connected()
  name <- opened(ledger)
  trial <- register(ledger, name, name = "tables", plan = small, dry_run = TRUE)
  expect_identical(list(trial$id, trial$remaining$rho), list("", 0.49))
  expect_identical(account(ledger, name)$remaining$rho, 0.5)
  expect_error(register(ledger, name, name = "t", plan = small, dry_run = NA), "dry_run: expected TRUE or FALSE")
  expect_output(print(trial), paste0("<dry run, nothing is registered: tables of ", name, " would be committed>"))
  expect_error(
    register(ledger, name, name = "t", plan = small, dryrun = TRUE),
    "expected named arguments, of ledger, account, name, plan, .*; got dryrun$"
  )
  expect_error(balance(ledger, name, "t"), "got one without a name$")
})

test_that("releases are found, in pages and in either order", {
  ledger <- connected()
  name <- opened(ledger)
  for (each in c("births", "deaths", "births again")) register(ledger, name, name = each, plan = small, tags = "t")
  names <- function(...) vapply(releases(ledger, name, ...), function(one) one$name, "")
  expect_identical(names(), c("births", "deaths", "births again"))
  expect_identical(names(newest_first = TRUE, most = 2), c("births again", "deaths"))
  expect_identical(names(name = "BIRTHS", tag = "t", state = "committed"), c("births", "births again"))
  today <- as.Date(format(Sys.time(), tz = "UTC"))
  expect_identical(length(names(since = today - 1, before = today + 2)), 3L)
  expect_identical(names(since = Sys.time() + 7200), character())
  expect_identical(names(before = "2020-01-01"), character())
  both <- opened(ledger)
  register(ledger, both, name = "births", plan = small, tags = name)
  register(ledger, name, name = "last", plan = small, tags = name)
  of_all <- function(...) vapply(find_releases(ledger, tag = name, ...), function(one) one$account, "")
  expect_identical(of_all(), c(name, both))
  expect_identical(of_all(newest_first = TRUE), c(both, name))
  expect_identical(of_all(name = "last", most = 1), name)
  expect_error(names(since = 7), "since: expected a Date")
  expect_error(names(most = 0), "most: expected a number above 0")
  expect_error(names(tag = 7), "expected texts to search by")
})

test_that("a batch is registered whole or not at all", {
  ledger <- connected()
  name <- opened(ledger)
  held <- new_release("second", small, reserve_for = as.difftime(1, units = "days"))
  both <- list(new_release("first", small, tags = "pl94", delta = "1e-9"), held)
  trial <- register_batch(ledger, name, both, dry_run = TRUE)
  expect_identical(vapply(trial, function(one) one$name, ""), c("first", "second"))
  batch <- register_batch(ledger, name, both, idempotency_key = paste(name, "b"))
  expect_identical(vapply(batch, function(one) one$state, ""), c("committed", "reserved"))
  again <- register_batch(ledger, name, both, idempotency_key = paste(name, "b"))
  expect_identical(again[[2]]$id, batch[[2]]$id)
  large <- new_release("large", plan_discrete_gaussian(rho = "0.48"))
  caught(register_batch(ledger, name, list(both[[1]], large)), "pbl_budget_exceeded")
  expect_identical(balance(ledger, name)$remaining$rho, 0.48)
  expect_output(print(balance(ledger, name)), paste0("<balance of ", name, ", at entry .*left +rho 0.48\n"))
})

test_that("a balance is asked for a tag and a delta", {
  ledger <- connected()
  name <- opened(ledger)
  register(ledger, name, name = "tagged", plan = small, tags = "age & sex")
  register(ledger, name, name = "other", plan = small)
  found <- balance(ledger, name, tag = "age & sex", delta = "1e-6")
  expect_identical(c(found$spent$zcdp$rho, found$remaining$rho), c(0.01, 0.48))
  expect_equal(unique(vapply(found$spent$approximate, function(one) one$delta, 0)), 1e-6)
})

test_that("receipts and packages are read", {
  ledger <- connected()
  name <- opened(ledger)
  made <- register(ledger, name, name = "tables", plan = county)
  draw_release(ledger, name, made$id, counties[1, ], mechanism = "county", partition = "36")
  expect_identical(receipt(ledger, name, made$id)$release$id, made$id)
  path <- tempfile(fileext = ".zip")
  writeBin(publication_package(ledger, name, made$id, confidence = "0.9"), path)
  expect_true(any(grepl("manifest", utils::unzip(path, list = TRUE)$Name)))
  caught(publication_package(ledger, name, "none"), "pbl_not_found")
})

test_that("an account takes further fields", {
  ledger <- connected()
  name <- opened(ledger)
  below <- open_account(
    ledger, paste0(name, ".part"),
    unit = "person", neighbouring = "add_remove", budget = budget_pure(epsilon = "1/3"),
    further = list(parent = name, description = "a part")
  )
  expect_identical(below$document$parent, name)
  expect_identical(below$document$budget$epsilon, "1/3")
})

test_that("a reservation is committed or voided", {
  ledger <- connected()
  name <- opened(ledger)
  time <- as.difftime(49, units = "hours")
  held <- replicate(2, register(ledger, name, name = "held", plan = small, reserve_for = time)$id)
  expect_identical(release(ledger, name, held[1])$state, "reserved")
  expect_identical(commit(ledger, name, held[1])$state, "committed")
  expect_identical(void(ledger, name, held[2], reason = "not published")$state, "voided")
  expect_identical(account(ledger, name)$remaining$rho, 0.49)
  for (time in list(as.difftime(0, units = "secs"), as.difftime(-1, units = "secs"), as.difftime(1.5, units = "secs"), 60, "P1D")) {
    expect_error(register(ledger, name, name = "held", plan = small, reserve_for = time), "whole seconds above 0")
  }
})

test_that("noise is calibrated to a margin", {
  ledger <- connected()
  noise <- calibrate(ledger, "discrete_gaussian", moe = 6, confidence = "95/100", further = list(cells = 2))
  expect_identical(list(noise$type, noise$sigma_squared, noise$cells), list("discrete_gaussian", "11.081705253", 2))
  expect_s3_class(calibrate(ledger, "geometric", moe = "6"), "pbl_mechanism")
  tails <- calibrate(ledger, "discrete_osgt", moe = 6, further = list(m = 3))
  expect_identical(list(tails$type, tails$sigma_squared, tails$m), list("discrete_osgt", "17.7843792717", "3"))
  expect_identical(calibrate(ledger, "laplace", moe = "0.5")$scale, "0.166904100347")
  expect_error(calibrate(ledger, "geometric", moe = 6, confidence = 0.95), "confidence: expected an exact number")
})

test_that("a draw is repeated under its key", {
  ledger <- connected()
  name <- opened(ledger)
  wanted <- function(frame) draw(ledger, name, frame, name = "totals", mechanism = small, tags = "county", idempotency_key = paste(name, "k"))
  one <- wanted(counties)
  two <- wanted(counties)
  expect_identical(c(one$replayed, two$replayed), c(FALSE, TRUE))
  expect_identical(one$frame, two$frame)
  expect_identical(one$draws, two$draws)
  expect_identical(account(ledger, name)$remaining$rho, 0.49)
  caught(wanted(counties[5:1, ]), "pbl_idempotency_conflict")
})

test_that("a mechanism of a release is drawn once", {
  ledger <- connected()
  name <- opened(ledger)
  made <- register(ledger, name, name = "counties", plan = county)
  drawn <- draw_release(ledger, name, made$id, counties, mechanism = "county", partition = "01")
  expect_identical(drawn$release, made$id)
  failed <- caught(
    draw_release(ledger, name, made$id, counties, mechanism = "county", partition = "01"), "pbl_already_drawn"
  )
  expect_identical(failed$draw, drawn$draws)
  expect_match(conditionMessage(failed), paste0("/v1/accounts/", name, "/draws/", drawn$draws), fixed = TRUE)
})

test_that("the values of a column are partitions, and continue under the condition's key", {
  ledger <- connected()
  name <- opened(ledger)
  made <- register(ledger, name, name = "counties", plan = county)
  wanted <- function(ledger, ...) draw_partitions(ledger, name, made$id, counties, mechanism = "county", by = "state", ...)
  failed <- caught(wanted(faulty(answer_lost, attempts = 1)), "pbl_connection_failed")
  one <- wanted(ledger, idempotency_key = failed$idempotency_key)
  two <- wanted(ledger, idempotency_key = failed$idempotency_key)
  expect_identical(c(one$replayed, two$replayed), c(FALSE, TRUE))
  expect_identical(one$frame, two$frame)
  expect_identical(one$frame$state, counties$state)
  expect_true(all(abs(one$frame$noisy - counties$count) < 100))
  stored <- send_request(ledger, "GET", paste0("/v1/accounts/", name, "/releases/", made$id, "/draws"))$items
  expect_identical(vapply(stored, function(draw) draw$partition, ""), c("36", "01", "02"))
  expect_identical(vapply(stored, function(draw) draw$draw, ""), one$draws)
})

test_that("texts are sent as UTF-8, whatever their encoding and the locale", {
  ledger <- connected()
  name <- opened(ledger)
  latin <- iconv("caf\u00e9", "UTF-8", "latin1")
  plan <- plan_discrete_gaussian(name = latin, rho = "0.01", partitions = c("\u00e4", "b"), tags = "\u6771")
  made <- register(ledger, name, name = "\u4eac", plan = plan)
  expect_identical(list(made$name, made$document$plan$name), list("\u4eac", "caf\u00e9"))
  frame <- data.frame(place = c("b", "\u00e4", "b"), count = 1:3)
  drawn <- draw_partitions(ledger, name, made$id, frame, mechanism = "caf\u00e9", by = "place")
  expect_length(drawn$draws, 2)
})

test_that("names in an address are encoded", {
  ledger <- connected()
  caught(account(ledger, paste("..", "keys", sep = "/")), "pbl_not_found")
  caught(account(ledger, ".."), "pbl_not_found")
  caught(release(ledger, "town?x=1", "a/b"), "pbl_not_found")
  for (name in list("", NA_character_, 1, c("a", "b"), NULL)) {
    expect_error(account(ledger, name), "expected the name of an account", class = "pbl_invalid_argument")
  }
})

test_that("a value that is no ledger, plan, budget or release is refused before anything is sent", {
  ledger <- connect_ledger("http://127.0.0.1:9", "key")
  expect_error(account("http://127.0.0.1", "town"), "expected a ledger")
  expect_error(register(ledger, "town", name = "t", plan = list(type = "geometric")), "plan: expected a plan")
  expect_error(draw(ledger, "town", counties, name = "t", mechanism = plan_sequence(small)), "expected a mechanism")
  expect_error(register_batch(ledger, "town", list(small)), "expected a list of new_release")
  expect_error(open_account(ledger, "t", unit = "u", neighbouring = "add_remove", budget = 1), "expected a budget")
  expect_error(send_request(ledger, "GET", "/v1/x", query = list("a")), "query: expected a list of named texts")
  for (json in list(data.frame(a = 1), list(a = data.frame(b = 1)), 0.5, list(rho = 0.5))) {
    expect_error(send_request(ledger, "POST", "/v1/x", json = json), "expected text, whole numbers")
  }
})
