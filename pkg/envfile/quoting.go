package envfile

import "strings"

// quoting is how a value is written: between two quotes, with something else in place of
// each special character. The zero quoting writes it as it is.
type quoting struct {
	quote, special string
	instead        func(special byte) string
}

// lineSize returns the length of the line of a variable.
func (q quoting) lineSize(v *Variable) int {
	n := len(v.Name) + len("=\n") + 2*len(q.quote) + len(v.Value)
	for value := v.Value; ; {
		i := q.index(value)
		if i < 0 {
			return n
		}
		n += len(q.instead(value[i])) - 1
		value = value[i+1:]
	}
}

// appendLine appends the line of a variable.
func (q quoting) appendLine(data []byte, v *Variable) []byte {
	data = append(data, v.Name...)
	data = append(data, '=')
	data = append(data, q.quote...)
	value := v.Value
	for i := q.index(value); i >= 0; i = q.index(value) {
		data = append(data, value[:i]...)
		data = append(data, q.instead(value[i])...)
		value = value[i+1:]
	}
	data = append(data, value...)
	data = append(data, q.quote...)
	return append(data, '\n')
}

// index returns where the first special character of value is, -1 if there is none.
func (q quoting) index(value string) int {
	if q.special == "" {
		return -1
	}
	return strings.IndexAny(value, q.special)
}
