package harness

import (
	"os"
	"strings"
	"testing"
)

func TestMain(m *testing.M) {
	os.Exit(Main(m, nil))
}

func TestStockNamesWhatIsNew(t *testing.T) {
	before, err := takeStock()
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	after, err := takeStock()
	if err != nil {
		t.Fatal(err)
	}
	if err := added(before, after); err == nil || !strings.Contains(err.Error(), "1 leaked file descriptor: /dev/null") {
		t.Errorf("an open file: %v, want it named", err)
	}
	if err := added(after, before); err != nil {
		t.Errorf("a closed file: %v", err)
	}
}
