# Plans as lists: one constructor for each mechanism and node, with the names of the service's JSON.
#
# Exact numbers are kept as text. All arguments but the parts of a node are named: `...` finds misspelt ones.

exact_fields <- c(
  "alpha", "at_least", "declared_delta", "delta", "epsilon", "granularity", "m", "mu", "rho", "scale",
  "sensitivity", "sigma_squared"
)
field_order <- c(
  "name", "reference", "alpha", "sigma_squared", "m", "scale", "rho", "epsilon", "delta", "mu", "declared_delta",
  "rdp",
  "add_remove", "values", "cells", "cells_added", "cells_replaced", "sensitivity", "granularity", "at_least",
  "threshold", "tags", "reads", "partitions", "max_degree", "count", "size", "parts", "part"
)
one_of <- list(
  geometric = c("scale", "epsilon"), laplace = c("scale", "epsilon"), discrete_gaussian = c("sigma_squared", "rho"),
  gaussian = c("sigma_squared", "rho")
)
whole_fields <- c("cells", "cells_added", "cells_replaced", "count", "max_degree", "size", "values")

plan_geometric <- function(..., scale = NULL, epsilon = NULL, name = NULL, tags = NULL, reads = NULL, cells = NULL,
                           cells_added = NULL, cells_replaced = NULL, sensitivity = NULL, partitions = NULL,
                           granularity = NULL, threshold = NULL) {
  mechanism("geometric", environment(), ...)
}

plan_discrete_gaussian <- function(..., sigma_squared = NULL, rho = NULL, name = NULL, tags = NULL, reads = NULL,
                                   cells = NULL, cells_added = NULL, cells_replaced = NULL, sensitivity = NULL,
                                   partitions = NULL, granularity = NULL, threshold = NULL) {
  mechanism("discrete_gaussian", environment(), ...)
}

plan_discrete_osgt <- function(..., sigma_squared, m, name = NULL, tags = NULL, reads = NULL, cells = NULL,
                               cells_added = NULL, cells_replaced = NULL, sensitivity = NULL, partitions = NULL,
                               granularity = NULL, threshold = NULL) {
  mechanism("discrete_osgt", environment(), ...)
}

plan_laplace <- function(..., scale = NULL, epsilon = NULL, name = NULL, tags = NULL, reads = NULL, cells = NULL,
                         cells_added = NULL, cells_replaced = NULL, sensitivity = NULL) {
  mechanism("laplace", environment(), ...)
}

plan_gaussian <- function(..., sigma_squared = NULL, rho = NULL, name = NULL, tags = NULL, reads = NULL,
                          cells = NULL, cells_added = NULL, cells_replaced = NULL, sensitivity = NULL) {
  mechanism("gaussian", environment(), ...)
}

plan_osgt <- function(..., sigma_squared, m, name = NULL, tags = NULL, reads = NULL, cells = NULL,
                      cells_added = NULL, cells_replaced = NULL, sensitivity = NULL) {
  mechanism("osgt", environment(), ...)
}

plan_randomized_response <- function(..., epsilon, values = NULL, name = NULL, tags = NULL, reads = NULL) {
  mechanism("randomized_response", environment(), ...)
}

plan_declared <- function(..., reference, epsilon = NULL, delta = NULL, mu = NULL, rho = NULL, rdp = NULL,
                          add_remove = NULL, name = NULL, tags = NULL, reads = NULL) {
  mechanism("declared", environment(), ...)
}

declaration <- function(..., epsilon = NULL, delta = NULL, mu = NULL, rho = NULL, rdp = NULL) {
  document("pbl_declaration", NULL, environment(), ...)
}

plan_threshold <- function(..., at_least) document("pbl_threshold", NULL, environment(), ...)

rdp_point <- function(..., alpha, epsilon) document("pbl_rdp_point", NULL, environment(), ...)

plan_sequence <- function(..., tags = NULL, reads = NULL, partitions = NULL) {
  parts <- list(...)
  node("sequence", environment())
}

plan_parallel <- function(..., max_degree, tags = NULL, reads = NULL, partitions = NULL) {
  parts <- list(...)
  node("parallel", environment())
}

plan_choice <- function(..., tags = NULL, reads = NULL, partitions = NULL) {
  parts <- list(...)
  node("choice", environment())
}

plan_repeat <- function(count, part, ..., tags = NULL, reads = NULL, partitions = NULL) {
  node("repeat", environment(), ...)
}

plan_group <- function(size, part, ..., tags = NULL, reads = NULL, partitions = NULL) {
  node("group", environment(), ...)
}

mechanism <- function(type, arguments, ...) {
  made <- document(c("pbl_mechanism", "pbl_plan"), type, arguments, ...)
  scales <- one_of[[type]]
  stated <- intersect(scales, names(made))
  if (length(scales) && length(stated) != 1L) {
    got <- if (length(stated)) paste(stated, collapse = " and ") else "none"
    refuse(type, ": expected exactly one of ", paste(scales, collapse = " and "), ", got ", got)
  }
  made
}

node <- function(type, arguments, ...) document("pbl_plan", type, arguments, ...)

# A document of a constructor's arguments, without those that are not stated.
document <- function(class, type, arguments, ...) {
  if (...length()) refuse_arguments(ls(arguments), ...)
  fields <- intersect(field_order, ls(arguments))
  values <- lapply(stats::setNames(nm = fields), function(field) {
    if (identical(arguments[[field]], quote(expr = ))) refuse("expected the argument ", field)
    if (length(arguments[[field]])) field_value(field, arguments[[field]])
  })
  type_field <- if (!is.null(type)) list(type = type)
  structure(class = c(class, "pbl_document"), c(type_field, Filter(Negate(is.null), values)))
}

field_value <- function(field, value) {
  if (field %in% exact_fields) return(exact_text(value, field))
  if (field %in% whole_fields) return(whole_number(value, field))
  switch(field,
    partitions = if (is.numeric(value)) whole_number(value, field) else texts(value, field),
    tags = texts(value, field),
    parts = documents(value, field, "pbl_plan", "plans, such as plan_geometric(), without names"),
    part = one_document(value, field, "pbl_plan", "a plan, such as plan_geometric()"),
    rdp = documents(value, field, "pbl_rdp_point", "a list of rdp_point()"),
    threshold = one_document(value, field, "pbl_threshold", "a plan_threshold()"),
    add_remove = one_document(value, field, "pbl_declaration", "a declaration()"),
    if (is_text(value)) enc2utf8(unname(value)) else refuse(field, ": expected one text")
  )
}

# Texts as a list, which is an array in JSON also where it has one element.
texts <- function(value, what) {
  if (!all(vapply(value, is_text, NA))) refuse(what, ": expected texts, none of them missing")
  lapply(unname(as.list(value)), enc2utf8)
}

documents <- function(value, field, class, expected) {
  named <- any(nzchar(names(value)))
  if (!is.list(value) || named || !all(vapply(value, inherits, NA, class))) refuse(field, ": expected ", expected)
  unname(value)
}

one_document <- function(value, field, class, expected) {
  if (inherits(value, class)) value else refuse(field, ": expected ", expected)
}

# The plan of a JSON document, as the service writes it.
read_plan <- function(document) {
  constructor <- if (is.list(document)) constructors()[[text_of(document[["type"]])]]
  stated <- Filter(Negate(is.null), document)
  fields <- setdiff(names(stated), "type")
  if (is.null(constructor) || !all(fields %in% c("parts", names(formals(constructor))))) {
    refuse("expected a plan of a type and with fields that this version of the package knows")
  }
  arguments <- lapply(stats::setNames(nm = setdiff(fields, "parts")), function(field) {
    value <- stated[[field]]
    switch(field,
      part = read_plan(value),
      rdp = lapply(value, function(point) do.call(rdp_point, point)),
      threshold = do.call(plan_threshold, value),
      add_remove = read_declaration(value),
      value
    )
  })
  do.call(constructor, c(lapply(stated[["parts"]], read_plan), arguments))
}

read_declaration <- function(document) {
  stated <- Filter(Negate(is.null), document)
  stated$rdp <- if (!is.null(stated$rdp)) lapply(stated$rdp, function(point) do.call(rdp_point, point))
  do.call(declaration, stated)
}

constructors <- function() {
  list(
    geometric = plan_geometric, discrete_gaussian = plan_discrete_gaussian, discrete_osgt = plan_discrete_osgt,
    laplace = plan_laplace, gaussian = plan_gaussian, osgt = plan_osgt,
    randomized_response = plan_randomized_response, declared = plan_declared, sequence = plan_sequence,
    parallel = plan_parallel, choice = plan_choice, "repeat" = plan_repeat, group = plan_group
  )
}

# A document in the form that is sent: a whole sensitivity is a JSON integer, which integer noise needs.
sent <- function(document) {
  if (!is.list(document) || (is.object(document) && !inherits(document, "pbl_document"))) return(document)
  whole <- document[["sensitivity"]]
  sent_fields <- lapply(unclass(document), sent)
  if (is_text(whole) && matches("-?[0-9]+", whole)) sent_fields[["sensitivity"]] <- verbatim(whole)
  sent_fields
}

print.pbl_document <- function(x, ...) {
  cat(jsonlite::prettify(write_json(sent(x)), 2), sep = "\n")
  invisible(x)
}
