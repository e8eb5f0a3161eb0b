package harness

import (
	"os"
	"strings"
	"testing"
)

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
	if err := added("file descriptor", before.descriptors, after.descriptors); err == nil || !strings.Contains(err.Error(), "/dev/null") {
		t.Errorf("an open file: %v, want it named", err)
	}
	if err := added("file descriptor", after.descriptors, before.descriptors); err != nil {
		t.Errorf("a closed file: %v", err)
	}
}
