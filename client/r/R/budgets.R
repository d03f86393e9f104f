# Budgets of accounts, one constructor for each definition of privacy loss; losses are in nats.

budget_pure <- function(..., epsilon, delta = NULL) budget("pure", environment(), ...)

budget_zcdp <- function(..., rho, delta = NULL) budget("zcdp", environment(), ...)

budget_rdp <- function(..., alpha, epsilon, delta = NULL) budget("rdp", environment(), ...)

budget_approximate <- function(..., epsilon, delta, declared_delta = NULL) budget("approximate", environment(), ...)

budget <- function(definition, arguments, ...) {
  made <- document("pbl_budget", NULL, arguments, ...)
  structure(class = class(made), c(list(definition = definition), unclass(made)))
}
