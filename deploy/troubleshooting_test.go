package deploy

import (
	"go/scanner"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// TestDocumentedTexts has each text that docs/troubleshooting.md quotes in a table, and each reason
// of an event, be in the code. "..." stands for what is not the same each time.
func TestDocumentedTexts(t *testing.T) {
	code := literals(t, "../pkg", "../cmd")
	row := regexp.MustCompile("(?m)^\\| (?:`(\\w+)` \\| )?(`[^|]+`) \\|")
	rows := row.FindAllStringSubmatch(documents(t)["docs/troubleshooting.md"], -1)
	if len(rows) < 20 {
		t.Fatalf("only %d rows have a text", len(rows))
	}
	for _, r := range rows {
		if reason := r[1]; reason != "" && !strings.Contains(code, "\x00"+reason+"\x00") {
			t.Errorf("docs/troubleshooting.md names the reason %s, which no event has", reason)
		}
		for _, text := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(r[2], -1) {
			for part := range strings.SplitSeq(text[1], "...") {
				if part = strings.Trim(part, " :,;"); !strings.Contains(code, part) {
					t.Errorf("docs/troubleshooting.md quotes %q, and no text of the code has %q", text[1], part)
				}
			}
		}
	}
}

// verb is one of fmt.
var verb = regexp.MustCompile(`%[+#.*\d]*[a-zA-Z]`)

// literals returns all strings of the code below some directories, without tests. A NUL byte is on
// each side of one, and in the place of each verb of fmt.
func literals(t *testing.T, dirs ...string) string {
	t.Helper()
	var all strings.Builder
	for _, dir := range dirs {
		err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			var s scanner.Scanner
			files := token.NewFileSet()
			s.Init(files.AddFile(path, -1, len(text)), text, nil, 0)
			for {
				_, kind, literal := s.Scan()
				if kind == token.EOF {
					return nil
				}
				if kind != token.STRING {
					continue
				}
				value, err := strconv.Unquote(literal)
				if err != nil {
					return err
				}
				all.WriteString("\x00" + verb.ReplaceAllString(value, "\x00") + "\x00")
			}
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return all.String()
}
