// Package expect compares what a test is about with what it should be. A difference fails the test, which goes on.
package expect

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
)

// Equal reports a value that is not as the wanted one. what says which value it is.
func Equal[T any](t testing.TB, what string, got, want T) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%s:\ngot  %s\nwant %s", what, short(got), short(want))
	}
}

// short returns how a value is printed: without the end of a long one, and a string in quotes.
func short(value any) string {
	if s, ok := value.(string); ok {
		return fmt.Sprintf("%.1000q", s)
	}
	return fmt.Sprintf("%.1000s", fmt.Sprintf("%+v", value))
}

// Between reports a value out of the wanted range.
func Between[T cmp.Ordered](t testing.TB, what string, got, least, most T) {
	t.Helper()
	if got < least || got > most {
		t.Errorf("%s: got %v, want %v to %v", what, got, least, most)
	}
}

// Is reports an error that is not the wanted one.
func Is(t testing.TB, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: got %v, want %v", what, err, want)
	}
}

// Has reports a text, such as that of an error, without the wanted part, which must not be empty.
func Has(t testing.TB, what, text, part string) {
	t.Helper()
	if part == "" {
		t.Errorf("%s: an empty text judges nothing", what)
	}
	if !strings.Contains(text, part) {
		t.Errorf("%s:\ngot  %s\nwant %s in it", what, text, part)
	}
}
