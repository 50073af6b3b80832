use abide::prelude::*;

struct Connection(u32);

impl Connection {
    fn number(&self) -> u32 {
        self.0
    }
}

#[workflow]
async fn store(ctx: Ctx) -> Result<()> {
    let one = Connection(1);
    ctx.sqlite("store", move |_| Ok(one.number())).await?;
    let other = Connection(2);
    ctx.blocking("print", move || Ok(other.number())).await?;
    Ok(())
}

fn main() {}
