use abide::prelude::*;

mod shop {
    use abide::prelude::*;

    #[derive(serde::Serialize, serde::Deserialize)]
    struct Order;

    #[workflow]
    pub async fn checkout(_ctx: Ctx, _order: Order) -> Result<()> {
        Ok(())
    }
}

fn main() {
    let _ = shop::checkout;
}
