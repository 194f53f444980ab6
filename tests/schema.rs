//! The JSON Schemas in `schema/` are those of the method table.

mod generated;

#[test]
fn the_schemas_are_up_to_date() {
    generated::compare("schema", &axp_protocol::schema::files(), "cargo run -- __schema schema");
}
