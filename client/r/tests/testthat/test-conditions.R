# Conditions: one class for each problem of the service.

small <- plan_discrete_gaussian(rho = "0.01")

test_that("a release that does not fit is a condition with the service's figures", {
  ledger <- connected()
  name <- opened(ledger)
  failed <- caught(register(ledger, name, name = "too much", plan = plan_gaussian(rho = 1)), "pbl_budget_exceeded")
  expect_s3_class(failed, c("pbl_budget_exceeded", "pbl_problem", "pbl_error", "error"), exact = FALSE)
  expect_identical(failed$failures[[1]]$account, name)
  expect_gt(failed$noise_multiplier_that_fits, 1)
  expect_identical(c(failed$status, failed$code), c("409", "budget_exceeded"))
  expect_match(failed$detail, name, fixed = TRUE)
  expect_type(failed$idempotency_key, "character")
  expect_null(conditionCall(failed))
})

test_that("an invalid request names its places", {
  ledger <- connected()
  name <- opened(ledger)
  failed <- caught(register(ledger, name, name = "t", plan = plan_gaussian(rho = "-1")), "pbl_validation")
  expect_identical(failed$errors[[1]]$pointer, "/plan/rho")
  expect_match(conditionMessage(failed), "/plan/rho: expected a number above 0", fixed = TRUE)
})

test_that("each refusal has the class of its problem", {
  ledger <- connected()
  name <- opened(ledger)
  caught(account(ledger, "no such account"), "pbl_not_found")
  caught(send_request(ledger, "DELETE", "/v1/principal"), "pbl_method_not_allowed")
  stranger <- connect_ledger(address_of_service(), "pbl_stranger", retries = at_once)
  caught(account(stranger, name), "pbl_unauthenticated")
  register(ledger, name, name = "one", plan = small, idempotency_key = paste(name, "one"))
  caught(register(ledger, name, name = "two", plan = small, idempotency_key = paste(name, "one")), "pbl_idempotency_conflict")
})

test_that("a problem of a later version is a plain problem", {
  for (type in list("/problems/new_kind", NULL, 1L, "/problems/a b<c>")) {
    made <- tryCatch(stop(privacybudgetledger:::problem(418L, list(type = type, message = "x", call = "y"))), error = identity)
    expect_s3_class(made, "pbl_problem")
    expect_identical(made$status, 418L)
    expect_null(conditionCall(made))
  }
  expect_false(any(grepl(" ", class(made))))
})
