//! A terminal screen that knows what the program uses: text, line ends, cursor up, erase below, and styles.

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cell {
    pub glyph: char,
    pub style: Style,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Style {
    pub bold: bool,
    pub faint: bool,
    /// 1 to 6, as SGR 31 to 36.
    pub color: u8,
}

#[derive(Debug, Clone)]
pub struct Screen {
    width: usize,
    height: usize,
    rows: Vec<Vec<Cell>>,
    row: usize,
    column: usize,
    style: Style,
    /// Bytes of a character or an escape sequence that is not complete.
    rest: Vec<u8>,
}

impl Screen {
    pub fn new(width: usize, height: usize) -> Self {
        Self {
            width,
            height,
            rows: vec![Vec::new()],
            row: 0,
            column: 0,
            style: Style::default(),
            rest: Vec::new(),
        }
    }

    pub fn rows(&self) -> &[Vec<Cell>] {
        &self.rows
    }

    /// The text without trailing blanks.
    pub fn text(&self) -> String {
        let line = |row: &Vec<Cell>| row.iter().map(|cell| cell.glyph).collect::<String>().trim_end().to_owned();
        let text = self.rows.iter().map(line).collect::<Vec<_>>().join("\n");
        text.trim_end().to_owned() + "\n"
    }

    pub fn write(&mut self, bytes: &[u8]) {
        self.rest.extend(bytes);
        let all = std::mem::take(&mut self.rest);
        let complete = match std::str::from_utf8(&all) {
            Ok(text) => text,
            Err(error) => std::str::from_utf8(&all[..error.valid_up_to()]).unwrap_or_default(),
        };
        let mut used = 0;
        let mut chars = complete.char_indices().peekable();
        while let Some((at, glyph)) = chars.next() {
            match glyph {
                '\u{1b}' => {
                    let Some(length) = self.escape(&complete[at..]) else { break };
                    while chars.peek().is_some_and(|(next, _)| *next < at + length) {
                        chars.next();
                    }
                    used = at + length;
                    continue;
                }
                '\r' => self.column = 0,
                '\n' => self.line_feed(),
                glyph if glyph.is_control() => {}
                glyph => self.put(glyph),
            }
            used = at + glyph.len_utf8();
        }
        self.rest = all[used..].to_vec();
    }

    fn put(&mut self, glyph: char) {
        if self.column == self.width {
            self.column = 0;
            self.line_feed();
        }
        let row = &mut self.rows[self.row];
        let blank = Cell {
            glyph: ' ',
            style: Style::default(),
        };
        if row.len() <= self.column {
            row.resize(self.column + 1, blank);
        }
        row[self.column] = Cell {
            glyph,
            style: self.style,
        };
        self.column += 1;
    }

    fn line_feed(&mut self) {
        self.row += 1;
        if self.row == self.rows.len() {
            self.rows.push(Vec::new());
        }
        if self.rows.len() > self.height {
            self.rows.remove(0);
            self.row -= 1;
        }
    }

    /// Carries out a sequence, and returns its length; `None` if it is not complete.
    fn escape(&mut self, text: &str) -> Option<usize> {
        let body = text.strip_prefix("\u{1b}[")?;
        let end = body.find(|glyph: char| glyph.is_ascii_alphabetic())?;
        let numbers: Vec<usize> = body[..end].split(';').map(|number| number.parse().unwrap_or(0)).collect();
        match body.as_bytes()[end] {
            b'A' => self.row = self.row.saturating_sub(numbers[0].max(1)),
            b'J' => {
                self.rows[self.row].truncate(self.column);
                self.rows.truncate(self.row + 1);
            }
            b'm' => numbers.iter().for_each(|number| self.select(*number)),
            _ => {}
        }
        Some(2 + end + 1)
    }

    fn select(&mut self, number: usize) {
        match number {
            0 => self.style = Style::default(),
            1 => self.style.bold = true,
            2 => self.style.faint = true,
            31..=36 => self.style.color = u8::try_from(number - 30).unwrap_or_default(),
            39 => self.style.color = 0,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_board_that_is_drawn_anew_replaces_the_one_before() {
        let mut screen = Screen::new(20, 5);
        screen.write(b"$ mainstay up\r\none\r\ntwo\r\n");
        screen.write(b"\x1b[2A\x1b[Jthree\r\n");
        assert_eq!(screen.text(), "$ mainstay up\nthree\n");
    }

    #[test]
    fn sequences_and_characters_that_come_in_two_parts_are_put_together() {
        let mut screen = Screen::new(20, 5);
        for byte in "a\x1b[31m█\x1b[0mb".bytes() {
            screen.write(&[byte]);
        }
        assert_eq!(screen.text(), "a█b\n");
        assert_eq!(screen.rows()[0][1].style.color, 1);
        assert_eq!(screen.rows()[0][2].style, Style::default());
    }

    #[test]
    fn long_lines_wrap_and_old_lines_scroll_away() {
        let mut screen = Screen::new(4, 2);
        screen.write(b"abcdef\r\nx\r\n");
        assert_eq!(screen.text(), "x\n");
        screen.write(b"y");
        assert_eq!(screen.text(), "x\ny\n");
    }
}
