# The connection to a service: its address, and the rules of requests.
#
# The key is not in the object, but in an environment of the package: so no print, no dump and no saved workspace has
# it. A ledger that was saved and loaded again has to be connected again.

keys <- new.env(parent = emptyenv())

connect_ledger <- function(address, key = Sys.getenv("PBL_KEY"), ..., heads = NULL, retries = retry_rules(),
                           timeout = 120) {
  named_only(...)
  if (!is_text(address) || !grepl("^https?://[^/?#]", address)) {
    refuse("expected an address such as https://ledger.example")
  }
  if (grepl("^https?://[^/?#]*@", address)) {
    refuse("expected an address without a user and a password: the key is sent instead of them")
  }
  if (grepl("[?#[:space:]]", address)) refuse("expected an address without a query, a fragment and spaces")
  if (!is_text(key) || !matches("[!-~]+", key)) {
    refuse("expected a key of printable ASCII characters, without spaces and line ends, as `key` or in PBL_KEY")
  }
  if (!inherits(retries, "pbl_retries")) refuse("retries: expected retry_rules()")
  if (!is_seconds(timeout) || timeout < 0.001) refuse("timeout: expected seconds above 0")
  ledger <- list(
    id = fresh_key(), address = sub("/+$", "", address), retries = retries, timeout = timeout, perform = perform,
    stream = stream
  )
  ledger$heads <- if (!is.null(heads)) heads_directory(heads)
  assign(ledger$id, key, envir = keys)
  structure(class = "pbl_ledger", ledger)
}

disconnect <- function(ledger) {
  if (exists(ledger$id, envir = keys, inherits = FALSE)) rm(list = ledger$id, envir = keys)
  invisible()
}

key_for <- function(ledger) {
  key <- keys[[ledger$id]]
  if (is.null(key)) refuse("expected a connected ledger: call connect_ledger() again")
  key
}

format.pbl_ledger <- function(x, ...) paste0("<ledger at ", x$address, ">")

print.pbl_ledger <- function(x, ...) {
  cat(format(x), "\n", sep = "")
  invisible(x)
}

version <- function() as.character(utils::packageVersion("privacybudgetledger"))
