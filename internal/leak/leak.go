// Package leak creates values that stand for what must not leak, known as canaries. It finds them in places where they must not be, in the
// forms in which a program may write them. It is for tests of all tiers.
//
// Every value holds the same mark, so that one search finds all of them, including those of other tests. A token is found by the start that
// all JSON web tokens have. The package must not know what is searched, or why.
package leak

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
)

const (
	// mark is in every value. These letters occur in this case nowhere else.
	mark = "CaNaRy-"
	// A value has units of ten bytes, so that every sixteen bytes have a whole mark, also in a value that was cut off.
	units, unit = 4, len(mark) + 3
	// Size is the length of a value in bytes.
	Size = units * unit
	// Value is one value, for tests that need no other.
	Value = mark + "001" + mark + "002" + mark + "003" + mark + "004"
)

// NewValue returns a unique value that is safe as a key's value or a file name.
func NewValue() string {
	random := rand.Text()
	var value strings.Builder
	for i := range units {
		value.WriteString(mark + random[3*i:3*i+3])
	}
	return value.String()
}

// NewToken returns a token that no server accepts, in the form of a service account's token, with a value in its claims and as its
// signature.
func NewToken() string {
	encode := base64.RawURLEncoding.EncodeToString
	return encode([]byte(`{"alg":"RS256","kid":"none"}`)) + "." +
		encode([]byte(`{"aud":["`+NewValue()+`"]}`)) + "." + NewValue()
}

// around is how many bytes on each side of a leak are shown.
const around = 100

// shared is created at the first search and is constant.
var shared = sync.OnceValue(newSearcher) //nolint:gochecknoglobals // A constant that Go has no syntax for.

// Check returns an error that names each form of a leak in a text, with the text around it. name is the name of the text. It is safe for
// concurrent use.
func Check[T string | []byte](name string, text T) error {
	all, s := []byte(text), shared()
	var errs []error
	add := func(what string, from, to int) {
		errs = append(errs, fmt.Errorf("%s leaks a %s, in %q", name, what, all[max(0, from-around):min(len(all), to+around)]))
	}
	for _, n := range s.needles {
		if i := bytes.Index(all, n.text); i >= 0 {
			add(n.what, i, i+len(n.text))
		}
	}
	if found := s.token.FindIndex(all); found != nil {
		add("web token", found[0], found[1])
	}
	return errors.Join(errs...)
}

// CheckObject is like Check, for an object's JSON.
func CheckObject(name string, object any) error {
	text, err := json.Marshal(object)
	if err != nil {
		return fmt.Errorf("search %s: %w", name, err)
	}
	return Check(name, text)
}

// CheckFiles is like Check, for every regular file below a directory, and for the names and links there. It leaves out mounts, and files
// that disappear meanwhile.
func CheckFiles(root string) error {
	device, err := deviceOf(root)
	if err != nil {
		return err
	}
	var errs []error
	err = filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() {
			var at uint64
			if at, err = deviceOf(path); err == nil && at != device {
				return fs.SkipDir
			}
		}
		if err == nil {
			err = checkEntry(path, entry)
		}
		if !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
		return nil
	})
	return errors.Join(append(errs, err)...)
}

func checkEntry(path string, entry fs.DirEntry) error {
	named := Check("the name of a file", filepath.Base(path))
	switch entry.Type() {
	case 0:
		text, err := os.ReadFile(path)
		return errors.Join(named, err, Check(path, text))
	case fs.ModeSymlink:
		link, err := os.Readlink(path)
		return errors.Join(named, err, Check("the link "+path, link))
	}
	return named
}

// deviceOf returns a number that identifies a path's file system.
func deviceOf(path string) (uint64, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return 0, err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, fmt.Errorf("stat %s: of what file system is not told", path)
	}
	return stat.Dev, nil
}

// needle is a text that can only come from a value or a token.
type needle struct {
	what string
	text []byte
}

// searcher finds needles, and web tokens of any kind.
type searcher struct {
	needles []needle
	token   *regexp.Regexp
}

// newSearcher returns a searcher for all forms of the mark and of the starts of tokens. A token's header and claims are base64, and these
// are their first bytes.
func newSearcher() *searcher {
	s := &searcher{token: regexp.MustCompile(`eyJ[\w-]{6,}\.eyJ`)}
	for what, text := range map[string]string{
		"value":        mark,
		"token header": base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"`))[:10],
		"token claims": base64.RawURLEncoding.EncodeToString([]byte(`{"aud":[`))[:10],
	} {
		for form, text := range forms(text) {
			s.needles = append(s.needles, needle{what + ", " + form, []byte(text)})
		}
	}
	slices.SortFunc(s.needles, func(a, b needle) int { return strings.Compare(a.what, b.what) })
	return s
}

// forms returns the forms in which a text may appear: plain, which is also its quoted form, base64 as in a JSON body, hexadecimal, and
// escaped as in a URL.
func forms(text string) map[string]string {
	digits := hex.EncodeToString([]byte(text))
	escaped := regexp.MustCompile("..").ReplaceAllString(digits, "%$0")
	all := map[string]string{
		"plain": text,
		"hex":   digits,
		"HEX":   strings.ToUpper(digits),
		"url":   escaped,
		"URL":   strings.ToUpper(escaped),
	}
	// In a longer text, the base64 form depends on the offset, and its first and last characters on the neighbouring text.
	for offset := range 3 {
		encoded := base64.RawStdEncoding.EncodeToString([]byte(strings.Repeat("x", offset) + text))
		first := (8*offset + 5) / 6
		last := 8 * (offset + len(text)) / 6
		all[fmt.Sprint("base64 at offset ", offset)] = encoded[first:last]
	}
	return all
}

// Log collects what a test has written. It is safe for concurrent use.
type Log struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write adds p to the log.
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// Sync does nothing. The JSON logger requires the method.
func (l *Log) Sync() error { return nil }

// String returns the whole log.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// With returns the lines that contain all parts.
func (l *Log) With(parts ...string) []string {
	return slices.DeleteFunc(slices.Collect(strings.Lines(l.String())), func(line string) bool {
		return slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(line, part) })
	})
}
