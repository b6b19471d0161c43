//! Images that resemble photographs, generated from a seed: large soft shapes, edges, grain.

use crate::random::mix;

/// RGB pixels, row by row. Smooth noise of several sizes gives a JPEG about as large as that of a photograph.
pub fn photo(seed: u64, width: usize, height: usize) -> Vec<u8> {
    let mut pixels = Vec::with_capacity(width * height * 3);
    let (w, h) = (width.max(1) as f32, height.max(1) as f32);
    for y in 0..height {
        for x in 0..width {
            let (u, v) = (x as f32 / w, y as f32 / h);
            let edge = f32::from(noise(seed ^ 77, u * 3.0, v * 3.0) > 0.5) * 40.0;
            let grain = (noise(seed ^ 5, x as f32, y as f32) - 0.5) * 18.0;
            for channel in 0..3_u64 {
                let key = seed.wrapping_mul(31).wrapping_add(channel);
                let soft =
                    noise(key, u * 2.0, v * 2.0) * 120.0 + noise(key ^ 9, u * 9.0, v * 9.0) * 60.0;
                let fine = noise(key ^ 21, u * 60.0, v * 60.0) * 30.0;
                pixels.push((soft + fine + edge + grain).clamp(0.0, 255.0) as u8);
            }
        }
    }
    pixels
}

/// Value noise between 0 and 1.
fn noise(seed: u64, x: f32, y: f32) -> f32 {
    let (left, top) = (x.floor(), y.floor());
    let corner = |dx: f32, dy: f32| {
        let key = ((left + dx) as i64 as u64) << 32 ^ ((top + dy) as i64 as u64) & 0xffff_ffff;
        (mix(seed ^ mix(key)) >> 40) as f32 / (1 << 24) as f32
    };
    let ease = |t: f32| t * t * (3.0 - 2.0 * t);
    let (along, down) = (ease(x - left), ease(y - top));
    let upper = corner(0.0, 0.0) * (1.0 - along) + corner(1.0, 0.0) * along;
    let lower = corner(0.0, 1.0) * (1.0 - along) + corner(1.0, 1.0) * along;
    upper * (1.0 - down) + lower * down
}
