package harness

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// LogLine is one line of the plugin's log, in either format.
type LogLine struct {
	// Message is what happened, and Fields are the values, an error's under err. That of an
	// object is its namespace/name.
	Message string
	Fields  map[string]string
}

// Is says whether the record has this message and these fields.
func (r LogLine) Is(message string, fields map[string]string) bool {
	if r.Message != message {
		return false
	}
	for key, value := range fields {
		if r.Fields[key] != value {
			return false
		}
	}
	return true
}

// textHeader begins a record in klog's text format. What follows may have more lines.
var textHeader = regexp.MustCompile(`(?m)^[IWEF]\d{4} \S+ +\d+ \S+\] `)

// ParseLog returns the records of a log as text or JSON. It fails on a line of another form, and
// on a record that has a key twice.
func ParseLog(log string) ([]LogLine, error) {
	var records []LogLine
	if strings.HasPrefix(log, "{") {
		for line := range strings.Lines(log) {
			r, err := parseJSON([]byte(line))
			if err != nil {
				return nil, fmt.Errorf("log line %s: %w", line, err)
			}
			records = append(records, r)
		}
		return records, nil
	}
	headers := textHeader.FindAllStringIndex(log, -1)
	if log != "" && (len(headers) == 0 || headers[0][0] > 0) {
		return nil, fmt.Errorf("the log does not begin with a record: %.200q", log)
	}
	for i, header := range headers {
		end := len(log)
		if i+1 < len(headers) {
			end = headers[i+1][0]
		}
		r, err := parseText(strings.TrimSuffix(log[header[1]:end], "\n"))
		if err != nil {
			return nil, fmt.Errorf("log line %s: %w", log[header[0]:end], err)
		}
		records = append(records, r)
	}
	return records, nil
}

func (r *LogLine) add(key, value string) error {
	if _, twice := r.Fields[key]; twice {
		return fmt.Errorf("the key %q appears twice", key)
	}
	r.Fields[key] = value
	return nil
}

// parseText parses what follows the header: a quoted message and fields.
func parseText(text string) (LogLine, error) {
	r := LogLine{Fields: map[string]string{}}
	quoted, err := strconv.QuotedPrefix(text)
	if err != nil {
		return r, fmt.Errorf("no quoted message: %w", err)
	}
	if r.Message, err = strconv.Unquote(quoted); err != nil {
		return r, err
	}
	for rest := text[len(quoted):]; rest != ""; {
		key, value, found := strings.Cut(strings.TrimPrefix(rest, " "), "=")
		if !found {
			return r, fmt.Errorf("no field: %q", rest)
		}
		value, rest, err = textValue(value)
		if err != nil {
			return r, fmt.Errorf("field %s: %w", key, err)
		}
		if err := r.add(key, value); err != nil {
			return r, err
		}
	}
	return r, nil
}

// textValue returns the value at the begin of text, and what follows it.
func textValue(text string) (value, rest string, err error) {
	switch {
	case strings.HasPrefix(text, `"`):
		quoted, err := strconv.QuotedPrefix(text)
		if err != nil {
			return "", "", err
		}
		value, err = strconv.Unquote(quoted)
		return value, text[len(quoted):], err
	case strings.HasPrefix(text, "<\n"): // of several lines
		value, rest, _ = strings.Cut(text[len("<\n"):], "\n >")
		return value, rest, nil
	}
	value, rest, found := strings.Cut(text, " ")
	if found {
		rest = " " + rest
	}
	return value, rest, nil
}

func parseJSON(line []byte) (LogLine, error) {
	r := LogLine{Fields: map[string]string{}}
	decoder := json.NewDecoder(bytes.NewReader(line))
	if _, err := decoder.Token(); err != nil {
		return r, err
	}
	for decoder.More() {
		key, err := decoder.Token()
		if err != nil {
			return r, err
		}
		var value any
		if err := decoder.Decode(&value); err != nil {
			return r, err
		}
		text := fmt.Sprint(value)
		if object, ok := value.(map[string]any); ok {
			text = fmt.Sprintf("%v/%v", object["namespace"], object["name"])
		}
		if err := r.add(fmt.Sprint(key), text); err != nil {
			return r, err
		}
	}
	r.Message = r.Fields["msg"]
	return r, nil
}
