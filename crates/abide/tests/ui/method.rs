use abide::prelude::*;

struct Shop;

impl Shop {
    #[workflow]
    async fn checkout(&self, _ctx: Ctx) -> Result<()> {
        Ok(())
    }
}

fn main() {}
