# Plans as lists: one constructor for each mechanism and node, with the names of the service's JSON.
#
# Exact numbers are kept as text. All arguments but the parts of a node are named: `...` finds misspelt ones.

exact_fields <- c(
  "alpha", "at_least", "by", "declared_delta", "delta", "discretization_interval", "epsilon", "granularity",
  "infinity_mass", "m", "mass", "mu", "query_scale", "rho", "scale", "sensitivity", "sigma_squared", "threshold_scale"
)
field_order <- c(
  "name", "reference", "masses", "rows", "value", "mass", "alpha", "sigma_squared", "m", "scale", "rho", "epsilon",
  "delta", "mu", "declared_delta", "rdp", "pld", "min_key", "infinity_mass", "discretization_interval", "symmetric",
  "remove", "add", "threshold_scale", "query_scale", "positives", "answers", "add_remove", "values", "by", "cells",
  "cells_added", "cells_replaced", "moves", "sensitivity", "granularity", "at_least", "threshold", "tags", "reads",
  "partitions", "max_degree", "count", "size", "parts", "part"
)
one_of <- list(
  geometric = c("scale", "epsilon"), laplace = c("scale", "epsilon"), discrete_gaussian = c("sigma_squared", "rho"),
  gaussian = c("sigma_squared", "rho"), noise_table = c("masses", "rows")
)
whole_fields <- c(
  "cells", "cells_added", "cells_replaced", "count", "max_degree", "min_key", "positives", "size", "value", "values"
)

plan_geometric <- function(..., scale = NULL, epsilon = NULL, name = NULL, tags = NULL, reads = NULL, cells = NULL,
                           cells_added = NULL, cells_replaced = NULL, moves = NULL, sensitivity = NULL,
                           partitions = NULL, granularity = NULL, threshold = NULL) {
  mechanism("geometric", environment(), ...)
}

plan_discrete_gaussian <- function(..., sigma_squared = NULL, rho = NULL, name = NULL, tags = NULL, reads = NULL,
                                   cells = NULL, cells_added = NULL, cells_replaced = NULL, moves = NULL,
                                   sensitivity = NULL, partitions = NULL, granularity = NULL, threshold = NULL) {
  mechanism("discrete_gaussian", environment(), ...)
}

plan_discrete_osgt <- function(..., sigma_squared, m, name = NULL, tags = NULL, reads = NULL, cells = NULL,
                               cells_added = NULL, cells_replaced = NULL, moves = NULL, sensitivity = NULL,
                               partitions = NULL, granularity = NULL, threshold = NULL) {
  mechanism("discrete_osgt", environment(), ...)
}

plan_noise_table <- function(..., masses = NULL, rows = NULL, name = NULL, tags = NULL, reads = NULL, cells = NULL,
                             cells_added = NULL, cells_replaced = NULL, sensitivity = NULL, partitions = NULL,
                             granularity = NULL) {
  mechanism("noise_table", environment(), ...)
}

noise_mass <- function(..., value, mass) document("pbl_noise_mass", NULL, environment(), ...)

noise_row <- function(..., masses) document("pbl_noise_row", NULL, environment(), ...)

plan_laplace <- function(..., scale = NULL, epsilon = NULL, name = NULL, tags = NULL, reads = NULL, cells = NULL,
                         cells_added = NULL, cells_replaced = NULL, moves = NULL, sensitivity = NULL) {
  mechanism("laplace", environment(), ...)
}

plan_gaussian <- function(..., sigma_squared = NULL, rho = NULL, name = NULL, tags = NULL, reads = NULL,
                          cells = NULL, cells_added = NULL, cells_replaced = NULL, moves = NULL, sensitivity = NULL) {
  mechanism("gaussian", environment(), ...)
}

plan_osgt <- function(..., sigma_squared, m, name = NULL, tags = NULL, reads = NULL, cells = NULL,
                      cells_added = NULL, cells_replaced = NULL, moves = NULL, sensitivity = NULL) {
  mechanism("osgt", environment(), ...)
}

plan_randomized_response <- function(..., epsilon, values = NULL, name = NULL, tags = NULL, reads = NULL) {
  mechanism("randomized_response", environment(), ...)
}

plan_above_threshold <- function(..., threshold_scale, query_scale, positives = NULL, answers = NULL,
                                 sensitivity = NULL, name = NULL, tags = NULL, reads = NULL) {
  mechanism("above_threshold", environment(), ...)
}

plan_exponential <- function(..., epsilon, sensitivity = NULL, scores = NULL, name = NULL, tags = NULL,
                             reads = NULL) {
  mechanism("exponential", environment(), ...)
}

plan_declared <- function(..., reference, epsilon = NULL, delta = NULL, mu = NULL, rho = NULL, rdp = NULL,
                          pld = NULL, add_remove = NULL, name = NULL, tags = NULL, reads = NULL) {
  mechanism("declared", environment(), ...)
}

declaration <- function(..., epsilon = NULL, delta = NULL, mu = NULL, rho = NULL, rdp = NULL, pld = NULL) {
  document("pbl_declaration", NULL, environment(), ...)
}

loss_distributions <- function(..., symmetric = NULL, remove = NULL, add = NULL) {
  document("pbl_loss_distributions", NULL, environment(), ...)
}

# The probabilities are a list of exact numbers, so that the service gets an array also for one of them.
loss_distribution <- function(..., min_key, probabilities, discretization_interval, infinity_mass = NULL) {
  texts <- lapply(as.list(probabilities), exact_text, "probabilities")
  arguments <- list2env(list(
    min_key = min_key, discretization_interval = discretization_interval, infinity_mass = infinity_mass
  ))
  masses <- document("pbl_loss_probabilities", NULL, arguments, ...)
  masses[["values"]] <- unname(texts)
  structure(class = c("pbl_loss_distribution", "pbl_document"), list(pessimistic_pmf = masses))
}

plan_threshold <- function(..., at_least) document("pbl_threshold", NULL, environment(), ...)

rdp_point <- function(..., alpha, epsilon) document("pbl_rdp_point", NULL, environment(), ...)

moved_cells <- function(..., by, cells = NULL) document("pbl_moved_cells", NULL, environment(), ...)

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
    masses = documents(value, field, "pbl_noise_mass", "a list of noise_mass()"),
    rows = documents(value, field, "pbl_noise_row", "a list of noise_row()"),
    pld = one_document(value, field, "pbl_loss_distributions", "loss_distributions()"),
    symmetric = ,
    remove = ,
    add = one_document(value, field, "pbl_loss_distribution", "a loss_distribution()"),
    rdp = documents(value, field, "pbl_rdp_point", "a list of rdp_point()"),
    moves = lapply(value, documents, field, "pbl_moved_cells", "lists of moved_cells()"),
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
      masses = read_masses(value),
      rows = lapply(value, function(row) noise_row(masses = read_masses(row$masses))),
      rdp = lapply(value, function(point) do.call(rdp_point, point)),
      moves = lapply(value, function(moves) lapply(moves, function(moved) do.call(moved_cells, moved))),
      pld = read_losses(value),
      threshold = do.call(plan_threshold, value),
      add_remove = read_declaration(value),
      value
    )
  })
  do.call(constructor, c(lapply(stated[["parts"]], read_plan), arguments))
}

read_masses <- function(masses) lapply(masses, function(one) do.call(noise_mass, one))

read_declaration <- function(document) {
  stated <- Filter(Negate(is.null), document)
  stated$rdp <- if (!is.null(stated$rdp)) lapply(stated$rdp, function(point) do.call(rdp_point, point))
  stated$pld <- if (!is.null(stated$pld)) read_losses(stated$pld)
  do.call(declaration, stated)
}

read_losses <- function(document) {
  do.call(loss_distributions, lapply(Filter(Negate(is.null), document), function(direction) {
    masses <- Filter(Negate(is.null), direction[["pessimistic_pmf"]])
    names(masses)[names(masses) == "values"] <- "probabilities"
    do.call(loss_distribution, masses)
  }))
}

constructors <- function() {
  list(
    geometric = plan_geometric, discrete_gaussian = plan_discrete_gaussian, discrete_osgt = plan_discrete_osgt,
    noise_table = plan_noise_table, laplace = plan_laplace, gaussian = plan_gaussian, osgt = plan_osgt,
    randomized_response = plan_randomized_response, exponential = plan_exponential,
    above_threshold = plan_above_threshold, declared = plan_declared, sequence = plan_sequence,
    parallel = plan_parallel, choice = plan_choice, "repeat" = plan_repeat, group = plan_group
  )
}

# A document in the form that is sent: a whole distance is a JSON integer, which integer noise needs.
sent <- function(document) {
  if (!is.list(document) || (is.object(document) && !inherits(document, "pbl_document"))) return(document)
  sent_fields <- lapply(unclass(document), sent)
  for (field in c("by", "sensitivity")) {
    whole <- document[[field]]
    if (is_text(whole) && matches("-?[0-9]+", whole)) sent_fields[[field]] <- verbatim(whole)
  }
  sent_fields
}

print.pbl_document <- function(x, ...) {
  cat(jsonlite::prettify(write_json(sent(x)), 2), sep = "\n")
  invisible(x)
}
