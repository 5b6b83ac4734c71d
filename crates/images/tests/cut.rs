//! Compares cuts of images with the simple way: all pixels decoded, then resized by the definition. A test in Python,
//! which has Pillow, shows that decoding and resizing are Pillow's.

use forebay_images::{Area, Cut, Cutter, ImageRefusal, size};
use proptest::prelude::*;
use std::ffi::c_int;
use turbojpeg_sys as tj;

/// Encoding of an image.
#[derive(Clone, Copy, Debug)]
struct Coding {
    subsampling: c_int,
    is_progressive: bool,
    quality: c_int,
    /// Number of blocks between restart markers; 0 for none.
    restart: c_int,
}

/// Returns a JPEG file with edges, slopes and noise.
fn jpeg(width: u32, height: u32, coding: Coding) -> Vec<u8> {
    let mut noise = 1_u32;
    let pixels: Vec<u8> = (0..width * height)
        .flat_map(|place| {
            let (x, y) = (place % width, place / width);
            noise ^= noise << 13;
            noise ^= noise >> 17;
            noise ^= noise << 5;
            let edge = if (x / 7 + y / 5) % 2 == 0 { 160 } else { 0 };
            [edge + (noise >> 26) as u8, (x * 3) as u8, (y * 2) as u8 ^ (noise >> 29) as u8]
        })
        .collect();
    let (mut bytes, mut length) = (std::ptr::null_mut(), 0);
    // SAFETY: the calls follow TurboJPEG's description; the number of pixels is right.
    unsafe {
        let handle = tj::tj3Init(tj::TJINIT_TJINIT_COMPRESS as c_int);
        for (parameter, value) in [
            (tj::TJPARAM_TJPARAM_SUBSAMP, coding.subsampling),
            (tj::TJPARAM_TJPARAM_QUALITY, coding.quality),
            (tj::TJPARAM_TJPARAM_PROGRESSIVE, coding.is_progressive.into()),
            (tj::TJPARAM_TJPARAM_RESTARTBLOCKS, coding.restart),
        ] {
            assert_eq!(tj::tj3Set(handle, parameter as c_int, value), 0);
        }
        let format = tj::TJPF_TJPF_RGB as c_int;
        let status = tj::tj3Compress8(
            handle,
            pixels.as_ptr(),
            width as c_int,
            0,
            height as c_int,
            format,
            &raw mut bytes,
            &raw mut length,
        );
        assert_eq!(status, 0);
        let made = std::slice::from_raw_parts(bytes, length as usize).to_vec();
        tj::tj3Free(bytes.cast());
        tj::tj3Destroy(handle);
        made
    }
}

const PLAIN: Coding = Coding {
    subsampling: tj::TJSAMP_TJSAMP_420 as c_int,
    is_progressive: false,
    quality: 90,
    restart: 0,
};

fn whole((width, height): (u32, u32)) -> Area {
    Area {
        left: 0,
        top: 0,
        width,
        height,
    }
}

fn cut(data: &[u8], cut: &Cut) -> Result<Vec<u8>, ImageRefusal> {
    let mut pixels = vec![0; 3 * cut.window.width as usize * cut.window.height as usize];
    Cutter::new().expect("memory").cut(data, cut, &mut pixels).map(|()| pixels)
}

/// Returns the cut of a whole image, not resized.
fn all(size: (u32, u32)) -> Cut {
    Cut {
        part: whole(size),
        resized: size,
        window: whole(size),
        is_down_first: false,
        is_mirrored: false,
    }
}

/// Returns a plane's row or column, resized as Pillow defines it: weights in fixed point, and a rounded byte.
fn resized_line(line: &[u8], length: u32) -> Vec<u8> {
    let scale = line.len() as f64 / f64::from(length);
    let reach = scale.max(1.0);
    (0..length)
        .map(|place| {
            let center = (f64::from(place) + 0.5) * scale;
            let first = (center - reach + 0.5).max(0.0) as usize;
            let end = ((center + reach + 0.5) as usize).min(line.len());
            let share = |x: usize| (1.0 - ((x as f64 - center + 0.5) * (1.0 / reach)).abs()).max(0.0);
            let sum: f64 = (first..end).map(share).fold(0.0, |sum, share| sum + share);
            let mean: i64 = (first..end)
                .map(|x| i64::from(line[x]) * (0.5 + share(x) / sum * f64::from(1 << 22)) as i64)
                .sum();
            ((mean + (1 << 21)) >> 22).clamp(0, 255) as u8
        })
        .collect()
}

type Plane = Vec<Vec<u8>>;

fn transposed(plane: &Plane) -> Plane {
    (0..plane[0].len()).map(|x| plane.iter().map(|row| row[x]).collect()).collect()
}

fn part_of(plane: &Plane, area: Area) -> Plane {
    let (left, top) = (area.left as usize, area.top as usize);
    plane[top..][..area.height as usize]
        .iter()
        .map(|row| row[left..][..area.width as usize].to_vec())
        .collect()
}

/// Returns the same cut of a plane of the whole image.
fn plain_cut(plane: &Plane, cut: &Cut) -> Plane {
    let across = |plane: &Plane| plane.iter().map(|row| resized_line(row, cut.resized.0)).collect();
    let down = |plane: &Plane| transposed(&transposed(plane).iter().map(|column| resized_line(column, cut.resized.1)).collect());
    let part = part_of(plane, cut.part);
    let resized = if cut.is_down_first {
        across(&down(&part))
    } else {
        down(&across(&part))
    };
    let mut window = part_of(&resized, cut.window);
    if cut.is_mirrored {
        for row in &mut window {
            row.reverse();
        }
    }
    window
}

fn within(end: u32) -> impl Strategy<Value = (u32, u32)> {
    (1..=end).prop_flat_map(move |length| (0..=end - length, Just(length)))
}

fn area_within((width, height): (u32, u32)) -> impl Strategy<Value = Area> {
    (within(width), within(height)).prop_map(|((left, width), (top, height))| Area { left, top, width, height })
}

fn any_coding() -> impl Strategy<Value = Coding> {
    let restart = prop_oneof![Just(0), 1..9_i32];
    (0..7_i32, any::<bool>(), 20..=100_i32, restart).prop_map(|(subsampling, is_progressive, quality, restart)| Coding {
        subsampling,
        is_progressive,
        quality,
        restart,
    })
}

/// Returns the size of an image, and a cut of it.
fn any_cut() -> impl Strategy<Value = ((u32, u32), Cut)> {
    let sizes = ((1..150_u32, 1..150_u32), (1..70_u32, 1..70_u32));
    sizes.prop_flat_map(|(size, resized)| {
        (area_within(size), area_within(resized), any::<bool>(), any::<bool>()).prop_map(
            move |(part, window, is_down_first, is_mirrored)| {
                (
                    size,
                    Cut {
                        part,
                        resized,
                        window,
                        is_down_first,
                        is_mirrored,
                    },
                )
            },
        )
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn a_cut_is_what_is_cut_out_of_the_whole((size, wanted) in any_cut(), coding in any_coding()) {
        let data = jpeg(size.0, size.1, coding);
        prop_assert_eq!(forebay_images::size(&data), Ok(size));
        let decoded = cut(&data, &all(size)).expect("it is decoded");
        let planes = decoded.chunks(size.0 as usize * size.1 as usize).map(|plane| plane.chunks(size.0 as usize).map(<[u8]>::to_vec).collect());
        let plain: Vec<u8> = planes.flat_map(|plane: Plane| plain_cut(&plane, &wanted).concat()).collect();
        prop_assert_eq!(cut(&data, &wanted).expect("it is cut"), plain);
    }

    #[test]
    fn what_is_cut_before_does_not_matter((size, wanted) in any_cut(), (other_size, other) in any_cut(), coding in any_coding()) {
        let (data, other_data) = (jpeg(size.0, size.1, coding), jpeg(other_size.0, other_size.1, PLAIN));
        let mut cutter = Cutter::new().expect("memory");
        let area = |cut: &Cut| 3 * cut.window.width as usize * cut.window.height as usize;
        let mut pixels = vec![0; area(&other)];
        cutter.cut(&other_data, &other, &mut pixels).expect("it is cut");
        // Neither does an image that could not be cut.
        let _ = cutter.cut(&other_data[..other_data.len() - 2], &other, &mut pixels);
        let mut pixels = vec![0; area(&wanted)];
        cutter.cut(&data, &wanted, &mut pixels).expect("it is cut");
        prop_assert_eq!(pixels, cut(&data, &wanted).expect("it is cut"));
    }

    #[test]
    fn bytes_that_were_altered_end_in_pixels_or_a_refusal(
        (size, wanted) in any_cut(),
        coding in any_coding(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
    ) {
        let mut data = jpeg(size.0, size.1, coding);
        for (place, byte) in changes {
            let place = place.index(data.len());
            data[place] = byte;
        }
        let outcome = cut(&data, &wanted);
        prop_assert!(forebay_images::size(&data).is_ok() || outcome.is_err());
    }

    #[test]
    fn any_bytes_are_refused(data in prop::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(size(&data).is_err());
        prop_assert!(size(&[&[0xFF, 0xD8, 0xFF], &data[..]].concat()).is_err());
    }
}

#[test]
fn a_file_that_was_cut_short_is_refused_wherever_it_ends() {
    let data = jpeg(40, 40, PLAIN);
    let top = Cut {
        window: Area {
            left: 0,
            top: 0,
            width: 4,
            height: 1,
        },
        ..all((40, 40))
    };
    assert!(cut(&data, &top).is_ok());
    for end in 0..data.len() {
        assert!(cut(&data[..end], &top).is_err(), "{end} bytes");
    }
}

#[test]
fn what_follows_an_image_does_not_matter() {
    let data = jpeg(9, 9, PLAIN);
    let longer = [&data[..], b"a film"].concat();
    assert_eq!(cut(&longer, &all((9, 9))), cut(&data, &all((9, 9))));
}

/// Returns the position of the frame's precision, height, width and number of components.
fn frame(data: &[u8]) -> usize {
    data.windows(2)
        .position(|two| two == [0xFF, 0xC0])
        .expect("a baseline file has one")
        + 4
}

#[test]
fn kinds_that_are_rare_are_refused() {
    let data = jpeg(9, 9, PLAIN);
    let at = frame(&data);
    for (offset, byte) in [(0, 12), (5, 4), (5, 2), (1, 0)] {
        let mut altered = data.clone();
        altered[at + offset] = byte;
        if (offset, byte) == (1, 0) {
            altered[at + 2] = 0;
        }
        assert_eq!(size(&altered), Err(ImageRefusal::Foreign), "{byte} at {offset}");
    }
    for marker in [0xC3, 0xC9, 0xCA] {
        let mut altered = data.clone();
        altered[at - 3] = marker;
        assert_eq!(size(&altered), Err(ImageRefusal::Foreign), "{marker:x}");
    }
    assert_eq!(size(b"\x89PNG\r\n\x1a\n"), Err(ImageRefusal::Foreign));
}

#[test]
fn huge_ones_are_refused_before_anything_is_decoded() {
    let mut data = jpeg(9, 9, PLAIN);
    let at = frame(&data);
    data[at + 1..at + 5].copy_from_slice(&[0xFF, 0xDC, 0xFF, 0xDC]);
    assert_eq!(size(&data), Err(ImageRefusal::Large));
    assert_eq!(cut(&data, &all((9, 9))), Err(ImageRefusal::Large));
}

#[test]
fn cuts_that_can_not_be_are_refused() {
    let data = jpeg(9, 9, PLAIN);
    let right = all((9, 9));
    let beside = Area { left: 1, ..right.part };
    let none = Area { width: 0, ..right.part };
    let far = Area {
        top: u32::MAX,
        ..right.part
    };
    for wrong in [
        Cut { part: beside, ..right },
        Cut { part: none, ..right },
        Cut { part: far, ..right },
        Cut { window: beside, ..right },
        Cut { window: none, ..right },
        Cut { resized: (8, 9), ..right },
    ] {
        assert_eq!(cut(&data, &wrong), Err(ImageRefusal::Impossible), "{wrong:?}");
    }
    let mut cutter = Cutter::new().expect("memory");
    assert_eq!(cutter.cut(&data, &right, &mut [0; 3 * 81 - 1]), Err(ImageRefusal::Impossible));
}
