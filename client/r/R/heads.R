# Heads of accounts, kept on disk: with them a client notices that a ledger has lost entries.
#
# A head is a text seq:hash, the number and the hash of a journal's last entry. Each account has a small JSON file in
# the directory, the one that the Python package reads and writes. Several processes may share the directory. A head
# that is older than the kept one never takes its place, except in a race of two processes; then the check is for a
# moment as strict as the older head allows.

head_pattern <- "[1-9][0-9]{0,14}:[0-9a-f]{64}"

kept_head <- function(directory, account) {
  path <- head_path(directory, account)
  if (!file.exists(path)) return(NULL)
  bytes <- tryCatch(
    readBin(path, "raw", 65536L),
    error = function(failed) NULL, warning = function(failed) NULL
  )
  if (is.null(bytes)) fail("unreadable_head", paste0("expected a file that can be read: ", path))
  head <- tryCatch(read_json(bytes)[["head"]], error = function(failed) NULL)
  if (!is_head(head)) fail("unreadable_head", paste0("expected a file with a head seq:hash: ", path))
  head
}

is_head <- function(value) is_text(value) && matches(head_pattern, value)

head_seq <- function(head) as.numeric(sub(":.*$", "", head))

# Keep a head that the service has answered with, unless a newer one is kept.
keep_head <- function(directory, account, head) {
  kept <- kept_head(directory, account)
  if (!is.null(kept) && head_seq(kept) == head_seq(head) && kept != head) {
    rolled_back(account, paste0("the answer's head of '", account, "' has the kept one's number, another hash"))
  }
  if (is.null(kept) || head_seq(kept) < head_seq(head)) {
    write_whole(directory, head_path(directory, account), write_json(list(account = account, head = head)))
  }
}

# Stop as the service does where the ledger does not contain an expected head.
rolled_back <- function(account, detail) {
  stop(problem(412L, list(
    type = "/problems/ledger_rolled_back", title = "The ledger has lost an entry", detail = detail, account = account
  )))
}

head_path <- function(directory, account) {
  if (!is_text(account)) refuse("expected the name of an account")
  file.path(directory, paste0(quoted(account), ".json"))
}

heads_directory <- function(directory) {
  if (!is_text(directory) || !nzchar(directory)) refuse("heads: expected a directory")
  directory <- path.expand(directory)
  if (!dir.exists(directory)) dir.create(directory, showWarnings = FALSE, recursive = TRUE, mode = "0700")
  if (!dir.exists(directory)) refuse("heads: the directory cannot be made: ", directory)
  normalizePath(directory)
}

# Write a file whole or not at all, for its owner alone. R cannot wait until the disk has it: after a power cut the file
# may be damaged, which is a condition and not a first use.
write_whole <- function(directory, path, text) {
  bytes <- charToRaw(text)
  old <- Sys.umask("077")
  on.exit(Sys.umask(old))
  beside <- tempfile(".head-", directory)
  written <- tryCatch(
    {
      writeBin(bytes, beside)
      identical(readBin(beside, "raw", length(bytes) + 1L), bytes) && file.rename(beside, path)
    },
    error = function(failed) FALSE, warning = function(failed) FALSE
  )
  if (!written) {
    unlink(beside)
    fail("head_not_kept", paste0("the head of the answer cannot be written to ", path))
  }
}
