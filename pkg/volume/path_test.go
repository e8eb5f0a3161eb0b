package volume

import (
	"strings"
	"testing"
)

type pathCase struct {
	name, path, want, wantErr string
}

func pathCases() []pathCase {
	element := strings.Repeat("e", 255)
	long := strings.Repeat("0123456789abcde/", 256)
	return []pathCase{
		{name: "file", path: "a", want: "a"},
		{name: "nested", path: "a/b/c", want: "a/b/c"},
		{name: "leading dot", path: "./a", want: "a"},
		{name: "dots inside", path: "a/./b", want: "a/b"},
		{name: "dot at the end", path: "a/.", want: "a"},
		{name: "double slash", path: "a//b", want: "a/b"},
		{name: "hidden file", path: ".a", want: ".a"},
		{name: "dots in a name", path: "a..b/c..", want: "a..b/c.."},
		{name: "names of the writer below a directory", path: "a/..data", want: "a/..data"},
		{name: "three dots below a directory", path: "a/...", want: "a/..."},
		{name: "blank", path: " ", want: " "},
		{name: "backslash", path: `a\b`, want: `a\b`},
		{name: "line end", path: "a\nb", want: "a\nb"},
		{name: "longest element", path: "a/" + element, want: "a/" + element},
		{name: "longest path", path: long[:4095] + "f", want: long[:4095] + "f"},

		{name: "empty", path: "", wantErr: "must not be empty"},
		{name: "absolute", path: "/etc/passwd", wantErr: "must be relative"},
		{name: "root", path: "/", wantErr: "must be relative"},
		{name: "two leading slashes", path: "//a", wantErr: "must be relative"},
		{name: "parent", path: "..", wantErr: `must not contain ".."`},
		{name: "below the parent", path: "../x", wantErr: `must not contain ".."`},
		{name: "parent inside", path: "a/../b", wantErr: `must not contain ".."`},
		{name: "parent inside that leads out", path: "a/../../b", wantErr: `must not contain ".."`},
		{name: "parent at the end", path: "a/..", wantErr: `must not contain ".."`},
		{name: "name of the writer", path: "..data", wantErr: `must not start with ".."`},
		{name: "below a name of the writer", path: "..data/a", wantErr: `must not start with ".."`},
		{name: "name of the writer after a dot", path: "./..data", wantErr: `must not start with ".."`},
		{name: "generation of the writer", path: "..2026_01_31.1", wantErr: `must not start with ".."`},
		{name: "three dots", path: "...", wantErr: `must not start with ".."`},
		{name: "element of 256 bytes", path: "a/e" + element + "/b", wantErr: "each element must have at most 255 bytes"},
		{name: "bytes count, not characters", path: strings.Repeat("ü", 128), wantErr: "each element must have at most 255 bytes"},
		{name: "path of 4097 bytes", path: long + "f", wantErr: "must have at most 4096 bytes"},
		{name: "NUL", path: "a\x00b", wantErr: "must not contain a NUL byte"},
		{name: "trailing slash", path: "a/b/", want: "a/b"},
		{name: "two trailing slashes", path: "a//", want: "a"},
		{name: "dot", path: ".", wantErr: "must name a file, not the volume itself"},
		{name: "dot and slash", path: "./", wantErr: "must name a file, not the volume itself"},
		{name: "dots", path: "././.", wantErr: "must name a file, not the volume itself"},
	}
}

func TestCleanPath(t *testing.T) {
	for _, c := range pathCases() {
		t.Run(c.name, func(t *testing.T) {
			got, err := CleanPath(c.path)
			if c.wantErr != "" {
				checkError(t, err, c.wantErr)
			} else if err != nil {
				t.Error(err)
			}
			if got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func TestParseMode(t *testing.T) {
	good := map[string]uint32{"00": 0, "07": 7, "0000": 0, "0644": 0o644, "0777": 0o777, "00777": 0o777}
	for s, want := range good {
		if got, err := ParseMode(s); err != nil || uint32(got) != want {
			t.Errorf("ParseMode(%q) = %o, %v; want %o", s, uint32(got), err, want)
		}
	}
	bad := []string{
		"", "0", "7", "644", "888", "0o440", "0O440", "0x1ff", "0b1", "01000", "07777", "000000", "0888", "-0440", "+0440",
		" 0440", "0440 ", "0440\n", "04_40", "0440.0", "u=r", "rw-r--r--", "٠٤٤٠",
	}
	for _, s := range bad {
		got, err := ParseMode(s)
		if got != 0 {
			t.Errorf("ParseMode(%q) = %o beside an error", s, uint32(got))
		}
		checkError(t, err, `must be an octal number with a leading zero, from "0000" to "0777"`)
	}
}
