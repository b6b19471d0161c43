//! stub
use super::words::Call;
use crate::error::Result;
use crate::format::Wanted;
pub(super) fn wanted(_: &Call<'_>) -> Result<Vec<Wanted>> {
    Ok(vec![])
}
