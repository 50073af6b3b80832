use abide::prelude::*;

#[workflow]
async fn greet(_ctx: Ctx, name: &str) -> Result<usize> {
    Ok(name.len())
}

#[task]
async fn greet_all(names: Vec<&'static str>) -> Result<usize> {
    Ok(names.len())
}

#[workflow]
async fn generic<'a>(_ctx: Ctx, name: std::borrow::Cow<'a, str>) -> Result<usize> {
    Ok(name.len())
}

fn main() {}
