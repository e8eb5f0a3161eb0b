package payload

import (
	"bytes"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/refvol/refvol/pkg/volume"
)

// UnfitError says that a value cannot be written into a text. Failures keep it in memory, so it has only a text.
type UnfitError struct{ text string }

// Error returns a text with the field, the variable and what to do.
func (e *UnfitError) Error() string { return e.text }

// addExpand adds a text with the values of variables in it. If one of its objects is refused, or deleted and forgiven, there is no file:
// without the values the text would have another meaning.
func (r *renderer) addExpand(source *volume.Source) error {
	from := &source.Expand.Text
	e := r.environment(source.Path, &source.Expand.Env)
	object, found := r.objectOf(&e.file, from.Ref, from.Optional, from.Field), false
	var text []byte
	if object != nil {
		text, found = object.Value(from.Key)
		if !found && !from.Optional {
			r.missing.add(Missing{Ref: from.Ref, Key: from.Key, Field: from.Field}, object)
		}
	}
	if err := r.check(source.Field); err != nil {
		return err
	}
	if r.lacks(source) {
		delete(r.files, source.Path) // an earlier source's text must not be shown in its place
		return nil
	}
	if !found {
		return nil
	}
	if err := e.expandText(text, source.Field); err != nil {
		return err
	}
	r.addFile(e.file, source.Mode, r.spec.DefaultMode)
	return nil
}

// lacks reports whether an object of a source is refused, or a required one was deleted.
func (r *renderer) lacks(source *volume.Source) bool {
	for _, use := range source.References() {
		isThere := r.objects[use.Ref] != nil || r.opts.Held.At[use.Ref].UID != ""
		if r.opts.Refused[use.Ref] || !use.Optional && !isThere {
			return true
		}
	}
	return false
}

// expandText writes a text into the file. $(NAME) of a variable that is set becomes its value, $$(NAME) becomes $(NAME), and the rest
// stays. Written bytes are counted, and it stops when there is no room left. A text that becomes shorter counts as it is.
func (e *environment) expandText(text []byte, at string) error {
	read, before := len(text), e.envBytes
	defer func() { e.envBytes = max(e.envBytes, before+read) }()
	for isLast := false; !isLast && e.envBytes <= MaxEnvBytes; {
		before, name, after := e.reference(text)
		value, escape := e.values[name], e.escapes[name]
		isLast = after == nil
		switch {
		case isLast:
			value = nil
		case bytes.HasSuffix(before, []byte("$")): // the $ itself is written
			value, escape = []byte("("+name+")"), volume.EscapeNone
		case escape == volume.EscapeJSON && !utf8.Valid(value):
			return &UnfitError{fmt.Sprintf("%s: the value of variable %.64s is not UTF-8, which escape: json needs: store a text, or set escape: url or none", at, name)}
		}
		e.write(before, volume.EscapeNone)
		e.write(value, escape)
		text = after
	}
	return nil
}

// reference returns the text before the first reference to a variable that is set, the variable's name, and the text after the reference.
// after is nil if there is none. A name contains no $, ( or ), so each byte is scanned once.
func (e *environment) reference(text []byte) (before []byte, name string, after []byte) {
	for from := 0; ; {
		begin := bytes.Index(text[from:], []byte("$("))
		if begin < 0 {
			return text, "", nil
		}
		begin += from
		from = begin + len("$(")
		end := bytes.IndexAny(text[from:], "$()")
		if end < 0 || text[from+end] != ')' {
			continue
		}
		name := text[from : from+end]
		if _, isSet := e.values[string(name)]; isSet {
			return text[:begin], string(name), text[from+end+1:]
		}
	}
}

// write appends a value to the file, as long as there is room.
func (e *environment) write(value []byte, escape volume.Escape) {
	before := len(e.file.Data)
	most := before + max(0, MaxEnvBytes-e.envBytes)
	switch data := e.file.Data; escape {
	case volume.EscapeJSON:
		for len(value) > 0 && len(data) <= most {
			r, n := utf8.DecodeRune(value)
			data, value = appendJSON(data, r), value[n:]
		}
		e.file.Data = data
	case volume.EscapeURL:
		for len(value) > 0 && len(data) <= most {
			data, value = appendURL(data, value[0]), value[1:]
		}
		e.file.Data = data
	default:
		e.file.Data = append(data, value...)
	}
	e.envBytes += len(e.file.Data) - before
}

// appendJSON appends a character in the form for a double-quoted string of JSON and YAML. YAML treats some characters as the end of a line,
// and allows others only escaped.
func appendJSON(data []byte, r rune) []byte {
	switch {
	case r == '"', r == '\\':
		return append(data, '\\', byte(r))
	case r == '\n':
		return append(data, `\n`...)
	case r == '\r':
		return append(data, `\r`...)
	case r == '\t':
		return append(data, `\t`...)
	case r < ' ', r >= 0x7f && r < 0xa0, r == 0x2028, r == 0x2029, r == 0xfeff, r == 0xfffe, r == 0xffff:
		return fmt.Appendf(data, `\u%04x`, r)
	}
	return utf8.AppendRune(data, r)
}

// appendURL appends a byte in the form for a component of a URL: everything except the unreserved characters of RFC 3986 is escaped.
func appendURL(data []byte, b byte) []byte {
	if 'a' <= b && b <= 'z' || 'A' <= b && b <= 'Z' || '0' <= b && b <= '9' || strings.IndexByte("-._~", b) >= 0 {
		return append(data, b)
	}
	const digits = "0123456789ABCDEF"
	return append(data, '%', digits[b>>4], digits[b&0xf])
}
