library(testthat)
library(privacybudgetledger)

test_check("privacybudgetledger")
