package sandbox

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"

	"go.uber.org/goleak"
)

// Tests is what Main needs of a *testing.M.
type Tests interface{ Run() int }

// Main is the body of a TestMain whose tests remove, link or mount: it enters the sandbox, runs the
// tests, and fails if goroutines are left. It returns the exit status. Where there can be no sandbox,
// it skips all tests, by name and with the reason.
func Main(m Tests) int {
	if Listing() {
		return m.Run()
	}
	status, inside, err := Enter(Options{})
	switch {
	case errors.Is(err, ErrUnavailable):
		err = skip(m, err)
	case err == nil && inside:
		if status = m.Run(); status == 0 {
			err = goleak.Find()
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "FAIL:", err)
		return max(status, 1)
	}
	return status
}

// Listing says whether this program is only asked for the names of its tests.
func Listing() bool {
	if !flag.Parsed() {
		flag.Parse()
	}
	list := flag.Lookup("test.list")
	return list != nil && list.Value.String() != ""
}

// skip says of each test that was asked for that it is skipped, as go test does with -v.
func skip(m Tests, reason error) error {
	names, err := list(m)
	if err != nil {
		return err
	}
	// What follows a slash chooses among the parts of a test.
	pattern, _, _ := strings.Cut(flag.Lookup("test.run").Value.String(), "/")
	wanted, err := regexp.Compile(pattern)
	if err != nil {
		return err
	}
	verbose := flag.Lookup("test.v").Value.String() != "false"
	for _, name := range names {
		if verbose && wanted.MatchString(name) && !strings.HasPrefix(name, "Benchmark") {
			_, _ = fmt.Fprintf(os.Stdout, "=== RUN   %s\n    %s\n--- SKIP: %s (0.00s)\n", name, strings.ReplaceAll(reason.Error(), "\n", "; "), name)
		}
	}
	return nil
}

// list returns the names of all tests, which m prints where it is asked for them.
func list(m Tests) ([]string, error) {
	read, write, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer read.Close()
	if err := flag.Set("test.list", "."); err != nil {
		return nil, errors.Join(err, write.Close())
	}
	printed := make(chan []byte, 1)
	go func() {
		text, _ := io.ReadAll(read) // it ends when the other end is closed
		printed <- text
	}()
	stdout := os.Stdout
	os.Stdout = write // m prints nowhere else
	status := m.Run()
	os.Stdout = stdout
	closeErr := write.Close()
	text := <-printed
	if status != 0 {
		return nil, fmt.Errorf("list the tests: status %d", status)
	}
	return strings.Fields(string(text)), closeErr
}
