package volume

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// isJSON says whether text is JSON (RFC 8259). Such text must not be read as YAML: YAML has no
// \/ and no surrogate pairs, which some encoders write by default, folds line ends that are
// none in JSON, and takes 1e999 for a string.
func isJSON(text string) bool {
	return utf8.ValidString(text) && json.Valid([]byte(text))
}

// jsonReader turns JSON into the nodes that YAML's parser makes of YAML, so that one walk
// serves both. It can't be json.Unmarshal: that one drops repeated fields and the lines.
type jsonReader struct {
	text   string
	tokens *json.Decoder
	// line is that of the byte at position.
	line     int
	position int
}

// parseJSON returns the root of text, for which isJSON holds.
func parseJSON(text string) (*yaml.Node, error) {
	if at := halfSurrogate(text); at >= 0 {
		return nil, fmt.Errorf("must be JSON without halves of surrogate pairs: line %d has one: write both escapes or the character itself",
			1+strings.Count(text[:at], "\n"))
	}
	r := &jsonReader{text: text, tokens: json.NewDecoder(strings.NewReader(text)), line: 1}
	r.tokens.UseNumber()
	return r.node()
}

// node reads the next value. It is nested no deeper than json.Valid lets it be.
func (r *jsonReader) node() (*yaml.Node, error) {
	token, err := r.tokens.Token()
	if err != nil {
		return nil, fmt.Errorf("read JSON: %w", err)
	}
	node := &yaml.Node{Kind: yaml.ScalarNode, Line: r.lineNow()}
	switch value := token.(type) {
	case json.Delim:
		node.Kind, node.Tag = yaml.SequenceNode, tagList
		if value == '{' {
			node.Kind, node.Tag = yaml.MappingNode, tagMapping
		}
		return node, r.children(node)
	case string:
		node.Tag, node.Value = tagString, value
	case json.Number:
		node.Tag, node.Value = tagInteger, value.String()
		if strings.ContainsAny(node.Value, ".eE") {
			node.Tag = tagFloat
		}
	case bool:
		node.Tag, node.Value = tagBoolean, strconv.FormatBool(value)
	default:
		node.Tag = tagNull
	}
	return node, nil
}

// children reads what is in a list or a mapping, up to and with its end. The names of fields
// are values as well.
func (r *jsonReader) children(of *yaml.Node) error {
	for r.tokens.More() {
		child, err := r.node()
		if err != nil {
			return err
		}
		of.Content = append(of.Content, child)
	}
	if _, err := r.tokens.Token(); err != nil {
		return fmt.Errorf("read JSON: %w", err)
	}
	return nil
}

// lineNow returns the line of the last token. Tokens have no line ends in them.
func (r *jsonReader) lineNow() int {
	end := int(r.tokens.InputOffset())
	r.line += strings.Count(r.text[r.position:end], "\n")
	r.position = end
	return r.line
}

// halfSurrogate returns where the first escape is that is half of a surrogate pair without its
// other half, which stands for no character; -1 if none is. encoding/json would replace it.
func halfSurrogate(text string) int {
	for i := 0; i < len(text); i++ {
		if text[i] != '\\' {
			continue
		}
		first := codeUnit(text[i:])
		if !utf16.IsSurrogate(first) {
			i++ // the escaped character may be a backslash
			continue
		}
		if utf16.DecodeRune(first, codeUnit(text[i+unitLength:])) == utf8.RuneError {
			return i
		}
		i += 2*unitLength - 1
	}
	return -1
}

// unitLength is that of \uXXXX.
const unitLength = 6

// codeUnit returns what the \uXXXX stands for that text begins with; -1 if it begins otherwise.
func codeUnit(text string) rune {
	if len(text) < unitLength || text[:2] != `\u` {
		return -1
	}
	unit, err := strconv.ParseUint(text[2:unitLength], 16, 16)
	if err != nil {
		return -1
	}
	return rune(unit)
}
