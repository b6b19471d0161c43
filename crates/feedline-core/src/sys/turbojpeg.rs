//! A safe wrapper of libjpeg-turbo in C: headers, decoding a region into the caller's memory, and
//! encoding (for the demo and the tests).

use std::ffi::{CStr, c_int};
use turbojpeg_sys as tj;

/// A decoder with its working memory. It is cheap to create, and must not be reused: after a decode
/// or a failure it may decode the next picture differently.
pub(crate) struct Decompressor(tj::tjhandle);

// SAFETY: a handle is plain memory without ties to a thread, and one thread uses it at a time.
unsafe impl Send for Decompressor {}

/// How the pixels of a file are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StoredColor {
    /// One channel.
    Gray,
    /// Three channels, of whatever kind.
    Color,
    /// Four channels: CMYK or YCCK.
    Cmyk,
}

/// The header of a file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct JpegHeader {
    /// The width in pixels.
    pub width: usize,
    /// The height in pixels.
    pub height: usize,
    /// How the pixels are stored.
    pub stored: StoredColor,
    /// Bits per channel.
    pub precision: u32,
    /// The smallest step of a region's left edge; `None` if regions cannot be decoded.
    pub block_width: Option<usize>,
}

/// The pixel format of the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PixelFormat {
    /// One byte per pixel.
    Gray,
    /// Red, green, blue.
    Rgb,
    /// Cyan, magenta, yellow, black, as stored.
    Cmyk,
}

/// A part of the picture, in pixels of the shrunk picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Region {
    /// The left edge; a multiple of the block width.
    pub left: usize,
    /// The top edge.
    pub top: usize,
    /// The width in pixels.
    pub width: usize,
    /// The height in pixels.
    pub height: usize,
}

/// What to decode, and how.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    /// The pixel format of the result.
    pub wanted: PixelFormat,
    /// 1, 2, 4 or 8: the picture is shrunk by this factor while it is decoded.
    pub shrink: usize,
    /// The part to decode; `None` for the whole picture.
    pub region: Option<Region>,
    /// Whether to stop at the first warning.
    pub strict: bool,
}

/// An error or a warning of libjpeg-turbo.
#[derive(Debug)]
pub(crate) struct Failure {
    /// The library's message.
    pub message: String,
    /// Whether this is a warning: the picture was decoded, but something was wrong.
    pub is_warning: bool,
}

impl Decompressor {
    /// Returns `None` if there is no memory for it.
    pub(crate) fn new() -> Option<Decompressor> {
        // SAFETY: there are no pointers to get wrong, and a null handle is checked.
        let handle = unsafe { tj::tj3Init(tj::TJINIT_TJINIT_DECOMPRESS as c_int) };
        (!handle.is_null()).then_some(Decompressor(handle))
    }

    /// Reads the header. `decode` refuses more than `max_pixels` pixels; the caller should check
    /// the header first.
    pub(crate) fn open<'d, 'b>(
        &'d mut self,
        bytes: &'b [u8],
        max_pixels: usize,
    ) -> Result<Opened<'d, 'b>, Failure> {
        let header = self.header(bytes, max_pixels)?;
        Ok(Opened { decompressor: self, bytes, header })
    }

    fn header(&mut self, bytes: &[u8], max_pixels: usize) -> Result<JpegHeader, Failure> {
        self.set(tj::TJPARAM_TJPARAM_STOPONWARNING, 0)?;
        self.set(tj::TJPARAM_TJPARAM_MAXPIXELS, c_int::try_from(max_pixels).unwrap_or(c_int::MAX))?;
        // Enough for every real progressive script; a file of thousands of scans is an attack.
        self.set(tj::TJPARAM_TJPARAM_SCANLIMIT, 500)?;
        // SAFETY: pointer and length belong together, and the library keeps no reference to the
        // bytes.
        let result =
            unsafe { tj::tj3DecompressHeader(self.0, bytes.as_ptr(), bytes.len() as tj::size_t) };
        if result != 0 {
            let failure = self.failure();
            if !failure.is_warning {
                return Err(failure);
            }
        }
        let width = self.get(tj::TJPARAM_TJPARAM_JPEGWIDTH);
        let height = self.get(tj::TJPARAM_TJPARAM_JPEGHEIGHT);
        let stored = match self.get(tj::TJPARAM_TJPARAM_COLORSPACE) as tj::TJCS {
            tj::TJCS_TJCS_GRAY => StoredColor::Gray,
            tj::TJCS_TJCS_CMYK | tj::TJCS_TJCS_YCCK => StoredColor::Cmyk,
            _ => StoredColor::Color,
        };
        let subsampling = self.get(tj::TJPARAM_TJPARAM_SUBSAMP);
        let block_width = match subsampling as tj::TJSAMP {
            tj::TJSAMP_TJSAMP_444 | tj::TJSAMP_TJSAMP_GRAY | tj::TJSAMP_TJSAMP_440 => Some(8),
            tj::TJSAMP_TJSAMP_441 => Some(8),
            tj::TJSAMP_TJSAMP_422 | tj::TJSAMP_TJSAMP_420 => Some(16),
            tj::TJSAMP_TJSAMP_411 => Some(32),
            _ => None,
        };
        let lossless = self.get(tj::TJPARAM_TJPARAM_LOSSLESS) == 1;
        let (Ok(width), Ok(height)) = (usize::try_from(width), usize::try_from(height)) else {
            return Err(Failure { message: "no picture size".into(), is_warning: false });
        };
        Ok(JpegHeader {
            width,
            height,
            stored,
            precision: self.get(tj::TJPARAM_TJPARAM_PRECISION).unsigned_abs(),
            block_width: block_width.filter(|_| !lossless),
        })
    }

    fn set(&mut self, parameter: tj::TJPARAM, value: c_int) -> Result<(), Failure> {
        // SAFETY: the handle is valid; bad values are refused by the library.
        self.check(unsafe { tj::tj3Set(self.0, parameter as c_int, value) })
    }

    fn get(&self, parameter: tj::TJPARAM) -> c_int {
        // SAFETY: the handle is valid.
        unsafe { tj::tj3Get(self.0, parameter as c_int) }
    }

    fn check(&mut self, result: c_int) -> Result<(), Failure> {
        if result == 0 { Ok(()) } else { Err(self.failure()) }
    }

    fn failure(&mut self) -> Failure {
        // SAFETY: the library returns a string that lives until the next call with this handle.
        let message = unsafe { CStr::from_ptr(tj::tj3GetErrorStr(self.0)) };
        // SAFETY: the handle is valid.
        let code = unsafe { tj::tj3GetErrorCode(self.0) };
        Failure {
            message: message.to_string_lossy().into_owned(),
            is_warning: code == tj::TJERR_TJERR_WARNING as c_int,
        }
    }
}

/// A file whose header was read.
pub(crate) struct Opened<'d, 'b> {
    decompressor: &'d mut Decompressor,
    bytes: &'b [u8],
    header: JpegHeader,
}

impl Opened<'_, '_> {
    /// The header of the file.
    pub(crate) fn header(&self) -> &JpegHeader {
        &self.header
    }

    /// Decodes into `target`, whose rows are `pitch` bytes apart. After a warning, `target` has the
    /// pixels; without `strict` the caller may use them.
    ///
    /// # Panics
    /// If `target` is too small.
    pub(crate) fn decode(
        &mut self,
        request: &Request,
        target: &mut [u8],
        pitch: usize,
    ) -> Result<(), Failure> {
        let (format, channels) = match request.wanted {
            PixelFormat::Gray => (tj::TJPF_TJPF_GRAY, 1),
            PixelFormat::Rgb => (tj::TJPF_TJPF_RGB, 3),
            PixelFormat::Cmyk => (tj::TJPF_TJPF_CMYK, 4),
        };
        let whole = Region {
            left: 0,
            top: 0,
            width: self.header.width.div_ceil(request.shrink),
            height: self.header.height.div_ceil(request.shrink),
        };
        let region = request.region.unwrap_or(whole);
        assert!(region.width * channels <= pitch && region.height > 0);
        assert!(pitch * (region.height - 1) + region.width * channels <= target.len());
        assert!(region.left + region.width <= whole.width);
        assert!(region.top + region.height <= whole.height);

        let handle = &mut *self.decompressor;
        handle.set(tj::TJPARAM_TJPARAM_STOPONWARNING, c_int::from(request.strict))?;
        let factor = tj::tjscalingfactor { num: 1, denom: request.shrink as c_int };
        // SAFETY: the handle is valid; both structures are passed by value.
        handle.check(unsafe { tj::tj3SetScalingFactor(handle.0, factor) })?;
        let cropping = match request.region {
            Some(region) => tj::tjregion {
                x: region.left as c_int,
                y: region.top as c_int,
                w: region.width as c_int,
                h: region.height as c_int,
            },
            None => tj::tjregion { x: 0, y: 0, w: 0, h: 0 },
        };
        // SAFETY: as above.
        handle.check(unsafe { tj::tj3SetCroppingRegion(handle.0, cropping) })?;
        // SAFETY: `target` holds the region by the assertions above. The header was read from these
        // same bytes, which have been borrowed since.
        let result = unsafe {
            tj::tj3Decompress8(
                handle.0,
                self.bytes.as_ptr(),
                self.bytes.len() as tj::size_t,
                target.as_mut_ptr(),
                pitch as c_int,
                format,
            )
        };
        handle.check(result)
    }
}

impl Drop for Decompressor {
    fn drop(&mut self) {
        // SAFETY: created by tj3Init and destroyed once.
        unsafe { tj::tj3Destroy(self.0) }
    }
}

/// Encodes RGB pixels without padding as a JPEG with 4:2:0 subsampling.
///
/// # Panics
/// If `pixels` is smaller than `width` and `height` require.
pub(crate) fn encode(
    pixels: &[u8],
    width: usize,
    height: usize,
    quality: u8,
) -> Result<Vec<u8>, Failure> {
    assert!(width > 0 && height > 0 && pixels.len() >= width * height * 3);
    // SAFETY: as in `Decompressor::new`.
    let handle = unsafe { tj::tj3Init(tj::TJINIT_TJINIT_COMPRESS as c_int) };
    if handle.is_null() {
        return Err(Failure { message: "out of memory".into(), is_warning: false });
    }
    let mut compressor = Decompressor(handle);
    compressor.set(tj::TJPARAM_TJPARAM_QUALITY, c_int::from(quality))?;
    compressor.set(tj::TJPARAM_TJPARAM_SUBSAMP, tj::TJSAMP_TJSAMP_420 as c_int)?;
    let mut buffer = std::ptr::null_mut();
    let mut size: tj::size_t = 0;
    // SAFETY: the size of `pixels` was checked; the library allocates `buffer` itself.
    let result = unsafe {
        tj::tj3Compress8(
            compressor.0,
            pixels.as_ptr(),
            width as c_int,
            (width * 3) as c_int,
            height as c_int,
            tj::TJPF_TJPF_RGB,
            &mut buffer,
            &mut size,
        )
    };
    let outcome = compressor.check(result).map(|()| {
        // SAFETY: on success the library wrote `size` bytes to `buffer`.
        unsafe { std::slice::from_raw_parts(buffer, size as usize) }.to_vec()
    });
    // SAFETY: allocated by the library, or null, which it accepts.
    unsafe { tj::tj3Free(buffer.cast()) };
    outcome
}
