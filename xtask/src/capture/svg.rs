//! An animated SVG of a terminal. Each row that stays the same for some time is one text, so that the file stays small; it plays for ever.

use std::fmt::Write;
use std::time::Duration;

use super::screen::{Cell, Screen, Style};

const CHAR_WIDTH: f64 = 8.4;
const LINE_HEIGHT: f64 = 18.0;
const MARGIN: f64 = 14.0;
/// The shortest time that a frame is shown.
const FRAME: Duration = Duration::from_millis(250);
/// How long the last frame stays before the animation begins anew.
const AT_THE_END: Duration = Duration::from_secs(5);

/// A row with the same content between two times.
struct RowRun {
    row: usize,
    cells: Vec<Cell>,
    from: Duration,
    to: Duration,
}

pub fn animation(frames: &[(Duration, Screen)], title: &str) -> String {
    let frames = thinned(frames);
    let end = frames.last().map_or(Duration::ZERO, |(at, _)| *at) + AT_THE_END;
    let rows = frames.iter().map(|(_, screen)| screen.rows().len()).max().unwrap_or(0);
    let columns = frames
        .iter()
        .flat_map(|(_, screen)| screen.rows())
        .map(Vec::len)
        .max()
        .unwrap_or(0)
        .max(80);
    let (width, height) = (
        columns as f64 * CHAR_WIDTH + 2.0 * MARGIN,
        rows as f64 * LINE_HEIGHT + 2.0 * MARGIN,
    );
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" xml:space=\"preserve\" viewBox=\"0 0 {width:.0} {height:.0}\" width=\"{width:.0}\" role=\"img\" \
         aria-label=\"{title}\">\n<style>\n{STYLE}</style>\n<rect class=\"b\" width=\"100%\" height=\"100%\" rx=\"8\"/>\n"
    );
    for run in runs(&frames, end) {
        row(&mut svg, &run, end);
    }
    svg.push_str("</svg>\n");
    svg
}

/// Readable on light and on dark pages.
const STYLE: &str = "\
text{font:14px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;white-space:pre;fill:#1f2328}
.b{fill:#f6f8fa}.c1{fill:#b3261e}.c2{fill:#1a7f37}.f{opacity:.6}.s{font-weight:bold}
@media(prefers-color-scheme:dark){text{fill:#e6edf3}.b{fill:#0d1117}.c1{fill:#ff7b72}.c2{fill:#3fb950}}
";

/// One frame in each interval: the last one of it.
fn thinned(frames: &[(Duration, Screen)]) -> Vec<(Duration, &Screen)> {
    let mut thinned: Vec<(Duration, &Screen)> = Vec::new();
    for (at, screen) in frames {
        match thinned.last_mut() {
            Some((last, shown)) if thinned_into(*last, *at) => *shown = screen,
            _ => thinned.push((*at, screen)),
        }
    }
    thinned
}

fn thinned_into(last: Duration, at: Duration) -> bool {
    at.saturating_sub(last) < FRAME
}

fn runs(frames: &[(Duration, &Screen)], end: Duration) -> Vec<RowRun> {
    let most = frames.iter().map(|(_, screen)| screen.rows().len()).max().unwrap_or(0);
    let mut runs: Vec<RowRun> = Vec::new();
    for row in 0..most {
        let mut open: Option<RowRun> = None;
        for (at, screen) in frames {
            let cells = screen.rows().get(row).cloned().unwrap_or_default();
            if open.as_ref().is_some_and(|run| run.cells == cells) {
                continue;
            }
            runs.extend(open.take().map(|run| RowRun { to: *at, ..run }));
            open = Some(RowRun {
                row,
                cells,
                from: *at,
                to: end,
            });
        }
        runs.extend(open);
    }
    runs.retain(|run| run.cells.iter().any(|cell| cell.glyph != ' '));
    runs
}

fn row(svg: &mut String, run: &RowRun, end: Duration) {
    let y = MARGIN + (run.row as f64 + 0.8) * LINE_HEIGHT;
    // Where animations are not played, the last frame is shown.
    let hidden = if run.to < end { " visibility=\"hidden\"" } else { "" };
    let _ = write!(svg, "<text x=\"{MARGIN}\" y=\"{y:.1}\"{hidden}>");
    for part in run.cells.chunk_by(|one, other| one.style == other.style) {
        let text: String = part.iter().map(|cell| escaped(cell.glyph)).collect();
        match classes(part[0].style) {
            classes if classes.is_empty() => svg.push_str(&text),
            classes => drop(write!(svg, "<tspan class=\"{classes}\">{text}</tspan>")),
        }
    }
    let share = |time: Duration| time.as_secs_f64() / end.as_secs_f64();
    let (from, to) = (share(run.from), share(run.to));
    if from > 0.0 || to < 1.0 {
        // Hidden, shown, hidden: the values that fall on the ends of the animation are left out.
        let mut steps: Vec<(f64, &str)> = vec![(0.0, if from > 0.0 { "hidden" } else { "visible" })];
        if from > 0.0 {
            steps.push((from, "visible"));
        }
        if to < 1.0 {
            steps.push((to, "hidden"));
        }
        let values: Vec<&str> = steps.iter().map(|(_, value)| *value).collect();
        let times: Vec<String> = steps.iter().map(|(time, _)| format!("{time:.4}")).collect();
        let _ = write!(
            svg,
            "<animate attributeName=\"visibility\" calcMode=\"discrete\" values=\"{}\" keyTimes=\"{}\" dur=\"{:.2}s\" \
             repeatCount=\"indefinite\"/>",
            values.join(";"),
            times.join(";"),
            end.as_secs_f64()
        );
    }
    svg.push_str("</text>\n");
}

fn classes(style: Style) -> String {
    let mut classes = Vec::new();
    if style.color > 0 {
        classes.push(format!("c{}", style.color));
    }
    if style.bold {
        classes.push("s".to_owned());
    }
    if style.faint {
        classes.push("f".to_owned());
    }
    classes.join(" ")
}

fn escaped(glyph: char) -> String {
    match glyph {
        '&' => "&amp;".to_owned(),
        '<' => "&lt;".to_owned(),
        '>' => "&gt;".to_owned(),
        glyph => glyph.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_one_text_for_the_time_in_which_it_stays_the_same() {
        let screen = |lines: &str| {
            let mut screen = Screen::new(20, 5);
            screen.write(lines.as_bytes());
            screen
        };
        let seconds = Duration::from_secs;
        let frames = [
            (seconds(0), screen("a < b\r\none")),
            (seconds(1), screen("a < b\r\n\x1b[32mtwo")),
            (seconds(2), screen("a < b\r\n\x1b[32mtwo")),
        ];
        let svg = animation(&frames, "x");
        assert_eq!(svg.matches("<text ").count(), 3, "{svg}");
        assert!(svg.contains("a &lt; b</text>"), "{svg}");
        assert!(
            svg.contains("<tspan class=\"c2\">two</tspan>") && svg.contains("keyTimes=\"0.0000;0.1429\""),
            "{svg}"
        );
    }
}
