# Plans as lists: they have the form of the contract, and mean the same to the service.

one <- plan_geometric(epsilon = "0.1")
masses <- list(
  noise_mass(value = -1, mass = "1e-9"), noise_mass(value = 0, mass = "0.999999998"), noise_mass(value = 1, mass = "1e-9")
)
every <- list(
  plan_geometric(epsilon = "0.4", name = "county", tags = "county", partitions = c("01", "02"), cells = 2),
  plan_geometric(scale = "2.5", sensitivity = 3, granularity = "1.5"),
  plan_geometric(scale = 1, threshold = plan_threshold(at_least = 300)),
  plan_discrete_osgt(sigma_squared = 1, m = 1, granularity = "0.5", threshold = plan_threshold(at_least = "99.5")),
  plan_discrete_gaussian(sigma_squared = "1.21", partitions = 52, reads = "nothing capped"),
  plan_discrete_gaussian(rho = "1/7", sensitivity = 2, cells_replaced = 2),
  plan_discrete_osgt(sigma_squared = 4, m = "0.5"),
  plan_geometric(
    scale = 2,
    moves = list(list(moved_cells(by = 2), moved_cells(by = 1, cells = 3)), list(moved_cells(by = "1", cells = 9)))
  ),
  plan_noise_table(masses = masses),
  plan_noise_table(rows = list(noise_row(masses = masses), noise_row(masses = masses)), sensitivity = 1),
  plan_above_threshold(threshold_scale = 2, query_scale = "7.5", positives = 3, answers = "monotone"),
  plan_laplace(scale = "2.5", sensitivity = "0.5"),
  plan_gaussian(rho = "0.125"),
  plan_osgt(sigma_squared = 9, m = 1),
  plan_exponential(epsilon = "0.3", name = "best", sensitivity = "0.5", scores = "monotone"),
  plan_declared(epsilon = "0.1", delta = "1e-9", reference = "a proof"),
  plan_declared(mu = "0.5", reference = "a proof"),
  plan_declared(reference = "a proof", pld = loss_distributions(symmetric = loss_distribution(
    min_key = -1, probabilities = c("0.25", "0", "0.75"), discretization_interval = 1, infinity_mass = 0
  ))),
  plan_declared(
    reference = "a proof", rdp = list(rdp_point(alpha = 2, epsilon = "0.1"), rdp_point(alpha = "2.5", epsilon = "0.2"))
  )
)
parsed <- function(plan) jsonlite::fromJSON(privacybudgetledger:::write_json(privacybudgetledger:::sent(plan)), FALSE)

test_that("noise has exactly one scale", {
  expect_error(plan_geometric(), "geometric: expected exactly one of scale and epsilon, got none")
  expect_error(plan_laplace(scale = 1, epsilon = 1), "got scale and epsilon")
  expect_error(plan_discrete_gaussian(name = "a"), "exactly one of sigma_squared and rho")
  expect_error(plan_gaussian(), "exactly one of sigma_squared and rho")
})

test_that("a threshold is a document of its own", {
  expect_error(plan_geometric(scale = 1, threshold = 5), "threshold: expected a plan_threshold")
  expect_error(plan_threshold(), "expected the argument at_least")
})

test_that("a misspelt argument is named", {
  expect_error(plan_geometric(epsilonn = 1), "of cells, .*, threshold; got epsilonn$")
  expect_error(budget_zcdp(roh = 1), "got roh$")
  expect_error(connect_ledger("http://localhost", "k", timeot = 1), "of address, key, .*; got timeot$")
})

test_that("the service prices each plan, and it is read back", {
  ledger <- connected()
  for (plan in every) {
    expect_identical(read_plan(parsed(plan)), plan)
    body <- list(plan = privacybudgetledger:::sent(plan), neighbouring = "add_remove")
    priced <- send_request(ledger, "POST", "/v1/compositions", json = body)
    expected <- if (is.null(plan$delta) && !identical(plan$type, "noise_table")) 0 else 1e-9
    if (is.null(plan[["threshold"]])) expect_equal(priced$delta, expected) else expect_gt(priced$delta, 0)
  }
})

test_that("a registered plan is read back as it was stated", {
  ledger <- connected()
  for (neighbouring in c("add_remove", "replace_one")) {
    parts <- every
    if (neighbouring == "replace_one") {
      side <- declaration(epsilon = "0.1", delta = "1e-9", rdp = list(rdp_point(alpha = 2, epsilon = "0.1")))
      parts <- c(Filter(function(part) is.null(part$cells_replaced), every), list(
        plan_randomized_response(epsilon = "1/3", values = 4),
        plan_declared(reference = "a proof", epsilon = "0.2", delta = "1e-9", add_remove = side)
      ))
    }
    nested <- list(
      plan_parallel(one, plan_repeat(3, one), max_degree = 2), plan_choice(one, plan_group(4, one))
    )
    plan <- do.call(plan_sequence, c(nested, parts, list(tags = "all")))
    budget <- budget_approximate(epsilon = 1000, delta = "1e-5", declared_delta = "1e-6")
    name <- paste0("all-", privacybudgetledger:::fresh_key())
    open_account(ledger, name, unit = "person", neighbouring = neighbouring, budget = budget)
    made <- register(ledger, name, name = "all", plan = plan)
    expect_identical(read_plan(made$document$plan), plan)
    expect_identical(read_plan(release(ledger, name, made$id)$document$plan), plan)
  }
})

test_that("a nested plan has the document's form", {
  plan <- plan_sequence(
    plan_parallel(one, plan_repeat(3, one), max_degree = 2, tags = "state"), plan_choice(one), partitions = "a"
  )
  part <- list(type = "geometric", epsilon = "0.1")
  expect_identical(parsed(plan), list(
    type = "sequence",
    partitions = list("a"),
    parts = list(
      list(
        type = "parallel", tags = list("state"), max_degree = 2L,
        parts = list(part, list(type = "repeat", count = 3L, part = part))
      ),
      list(type = "choice", parts = list(part))
    )
  ))
})

test_that("a budget has the document's form", {
  sent <- function(budget) unclass(privacybudgetledger:::sent(budget))
  expect_identical(sent(budget_pure(epsilon = 1)), list(definition = "pure", epsilon = "1"))
  expect_identical(sent(budget_zcdp(rho = "1/3")), list(definition = "zcdp", rho = "1/3"))
  expect_identical(sent(budget_rdp(alpha = 2, epsilon = 1)), list(definition = "rdp", alpha = "2", epsilon = "1"))
  expect_identical(
    sent(budget_approximate(epsilon = 1, delta = "1e-6", declared_delta = 0)),
    list(definition = "approximate", epsilon = "1", delta = "1e-6", declared_delta = "0")
  )
  expect_error(budget_zcdp(rho = 0.1), "rho: expected an exact number as text")
  expect_error(budget_zcdp(), "expected the argument rho")
})

test_that("a whole sensitivity is a JSON integer", {
  expect_identical(parsed(plan_geometric(epsilon = 1, sensitivity = "3"))$sensitivity, 3L)
  expect_identical(parsed(plan_laplace(epsilon = 1, sensitivity = "0.5"))$sensitivity, "0.5")
})

test_that("an argument that is missing, misspelt or no plan is refused", {
  expect_error(plan_osgt(m = 1), "expected the argument sigma_squared")
  expect_error(plan_gaussian(sigma = 1), "expected named arguments, of .*; got sigma$")
  expect_error(plan_gaussian("0.1"), "got one without a name")
  expect_error(plan_gaussian(rho = 0.1), "rho: expected an exact number as text")
  expect_error(plan_sequence(one, tag = "a"), "parts: expected plans")
  expect_error(plan_sequence(list(type = "geometric")), "parts: expected plans")
  expect_error(plan_repeat(2, "one"), "part: expected a plan")
  expect_error(plan_repeat(2, one, one), "got one without a name")
  expect_error(plan_declared(reference = "a", rdp = rdp_point(alpha = 2, epsilon = 1)), "rdp: expected a list")
  expect_error(plan_declared(reference = "a", add_remove = list(epsilon = "1")), "add_remove: expected a declaration")
  expect_error(plan_geometric(epsilon = 1, tags = c("a", NA)), "tags: expected texts")
  expect_error(plan_geometric(epsilon = 1, name = 1), "name: expected one text")
})

test_that("a document of an unknown kind is refused", {
  documents <- list(
    list(), "geometric", list(type = ""), list(type = "unheard"), list(epsilon = "1"), list(type = "geometric", sigma = "1"),
    list(type = "geometric", epsilon = "1", parts = list(list(type = "geometric", epsilon = "1")))
  )
  for (document in documents) expect_error(read_plan(document), class = "pbl_invalid_argument")
})

test_that("a plan is shown as JSON", {
  expect_output(print(one), '"epsilon": "0.1"', fixed = TRUE)
})
