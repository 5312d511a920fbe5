//! The part of Helm's template language that the simulated charts use: values, the release, `if`, `range`, `required`, `default`, `toYaml`, `fail`.

use serde_json::{Value, json};

/// Renders one template; the error is Helm's text after `execution error at`.
pub(crate) fn render(name: &str, text: &str, context: &Value) -> Result<String, String> {
    let tokens = tokens(text);
    let mut at = 0;
    let out = block(name, &tokens, &mut at, context, true)?;
    if at < tokens.len() {
        return Err(format!("parse error at ({name}): unexpected {{{{end}}}}"));
    }
    Ok(out)
}

enum Token<'a> {
    Text(&'a str),
    Action(&'a str),
}

fn tokens(text: &str) -> Vec<Token<'_>> {
    let mut out = Vec::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("{{") {
        let Some((action, after)) = after.split_once("}}") else {
            break;
        };
        let before = if action.starts_with('-') { before.trim_end() } else { before };
        out.push(Token::Text(before));
        out.push(Token::Action(action.trim_matches('-').trim()));
        rest = if action.ends_with('-') { after.trim_start() } else { after };
    }
    out.push(Token::Text(rest));
    out
}

fn block(name: &str, tokens: &[Token<'_>], at: &mut usize, context: &Value, active: bool) -> Result<String, String> {
    let mut out = String::new();
    while let Some(token) = tokens.get(*at) {
        match token {
            Token::Text(text) => {
                if active {
                    out.push_str(text);
                }
            }
            Token::Action("end" | "else") => return Ok(out),
            Token::Action(action) => {
                if let Some(test) = action.strip_prefix("if ") {
                    *at += 1;
                    let holds = active && truth(&evaluate(name, test, context)?);
                    out.push_str(&block(name, tokens, at, context, holds)?);
                    if matches!(tokens.get(*at), Some(Token::Action("else"))) {
                        *at += 1;
                        out.push_str(&block(name, tokens, at, context, active && !holds)?);
                    }
                    if *at >= tokens.len() {
                        return Err(format!("parse error at ({name}): unclosed action"));
                    }
                } else if active {
                    out.push_str(&show(&evaluate(name, action, context)?));
                }
            }
        }
        *at += 1;
    }
    Ok(out)
}

fn truth(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(value) => *value,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => !text.is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::Object(map) => !map.is_empty(),
    }
}

fn show(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Stages of a pipe; each gets the result of the one before as its last argument.
fn evaluate(name: &str, expression: &str, context: &Value) -> Result<Value, String> {
    let mut piped: Option<Value> = None;
    for stage in expression.split('|') {
        let words = words(stage);
        let Some((head, rest)) = words.split_first() else { continue };
        let mut arguments: Vec<Value> = rest.iter().map(|word| operand(word, context)).collect();
        arguments.extend(piped.take());
        let first = arguments.first().cloned().unwrap_or_default();
        let second = arguments.get(1).cloned().unwrap_or_default();
        piped = Some(match head.as_str() {
            "required" if !truth(&second) => return Err(format!("execution error at ({name}): {}", show(&first))),
            "required" => second,
            "fail" => return Err(format!("execution error at ({name}): {}", show(&first))),
            "default" => {
                if truth(&second) {
                    second
                } else {
                    first
                }
            }
            "quote" => json!(json!(show(&first)).to_string()),
            // JSON is YAML; one line needs no indentation.
            "toYaml" | "toJson" => json!(first.to_string()),
            "not" => json!(!truth(&first)),
            "eq" => json!(first == second),
            word if arguments.is_empty() => operand(word, context),
            word => return Err(format!("parse error at ({name}): function \"{word}\" not defined")),
        });
    }
    Ok(piped.unwrap_or_default())
}

fn words(stage: &str) -> Vec<String> {
    let mut out: Vec<String> = Vec::new();
    let mut quoted = false;
    let mut word = String::new();
    for letter in stage.trim().chars() {
        match letter {
            '"' => {
                quoted = !quoted;
                word.push(letter);
            }
            ' ' if !quoted => {
                if !word.is_empty() {
                    out.push(std::mem::take(&mut word));
                }
            }
            letter => word.push(letter),
        }
    }
    if !word.is_empty() {
        out.push(word);
    }
    out
}

fn operand(word: &str, context: &Value) -> Value {
    if let Some(path) = word.strip_prefix('.') {
        return path
            .split('.')
            .filter(|part| !part.is_empty())
            .fold(context, |at, part| &at[part])
            .clone();
    }
    serde_json::from_str(word).unwrap_or_else(|_| json!(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_conditions_and_required_are_rendered_as_helm_does() {
        let context = json!({"Values": {"replicas": 2, "on": true, "off": false, "list": [1]}, "Release": {"Name": "r"}});
        let text = "name: {{ .Release.Name }}\n{{- if .Values.on }}\nreplicas: {{ .Values.replicas | default 1 }}\n{{- else }}\nno: 1\n{{- end }}\nlist: {{ toYaml .Values.list }}\n";
        assert_eq!(
            render("t.yaml", text, &context).expect("rendered"),
            "name: r\nreplicas: 2\nlist: [1]\n"
        );
        assert_eq!(
            render("t.yaml", "{{ required \"x is needed\" .Values.none }}", &context),
            Err("execution error at (t.yaml): x is needed".into())
        );
        assert!(
            render("t.yaml", "{{ if .Values.off }}{{ fail \"no\" }}{{ end }}", &context)
                .expect("rendered")
                .is_empty()
        );
        assert!(
            render("t.yaml", "{{ include \"x\" . }}", &context)
                .expect_err("unknown")
                .contains("not defined")
        );
    }
}
