use abide::prelude::*;

#[workflow]
async fn count(ctx: Ctx) -> Result<u32> {
    let mut attempts = 0;
    ctx.step("count", || async {
        attempts += 1;
        Ok(attempts)
    })
    .await
}

fn main() {}
