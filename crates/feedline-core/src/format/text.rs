//! Lines of JSON and of CSV.
