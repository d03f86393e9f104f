# A running service, and what stands between it and a client.

at_once <- retry_rules(shortest = 0.001) # attempts without waiting

address_of_service <- function() {
  address <- Sys.getenv("SERVICE")
  if (!nzchar(address)) testthat::skip("SERVICE and KEY name no running service")
  address
}

connected <- function(...) connect_ledger(address_of_service(), Sys.getenv("KEY"), retries = at_once, ...)

# The name of a new account, of one test alone.
opened <- function(ledger) {
  name <- paste0("r-", privacybudgetledger:::fresh_key())
  budget <- budget_zcdp(rho = "0.5")
  open_account(ledger, name, unit = "person", neighbouring = "add_remove", budget = budget)$name
}

# A ledger whose next requests go wrong, one fault for each; later ones reach the service. `ledger$seen()` returns the
# calls so far, those that went wrong too.
faulty <- function(..., attempts = 6, heads = NULL, address = address_of_service()) {
  faults <- list(...)
  seen <- list()
  ledger <- connect_ledger(address, Sys.getenv("KEY", "key"), retries = retry_rules(attempts, 0.001), heads = heads)
  ledger$perform <- function(ledger, call) {
    seen <<- c(seen, list(call))
    if (!length(faults)) return(privacybudgetledger:::perform(ledger, call))
    fault <- faults[[1L]]
    faults <<- faults[-1L]
    fault(ledger, call)
  }
  ledger$seen <- function() seen
  ledger
}

# A fault: the request is not sent.
refused <- function(ledger, call) list(reason = "Connection refused")

# A fault: the service carries the request out, and its answer is lost.
answer_lost <- function(ledger, call) {
  privacybudgetledger:::perform(ledger, call)
  list(reason = "Recv failure: Connection reset by peer")
}

# A fault that answers in the place of the service.
answered <- function(status, body = "", kind = "application/json", ...) {
  headers <- c(list("Content-Type" = kind), list(...))
  function(ledger, call) privacybudgetledger:::answer_of(status, headers, charToRaw(body))
}

caught <- function(work, class = "pbl_error") {
  condition <- tryCatch(
    {
      work
      NULL
    },
    error = identity
  )
  testthat::expect_s3_class(condition, class)
  condition
}
