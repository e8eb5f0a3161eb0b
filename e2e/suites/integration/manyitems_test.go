package integration

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
)

// resident returns the bytes of memory that the plugin has now, and those that it had at most.
func (n *node) resident() (now, most int64) {
	n.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", n.PID()))
	if err != nil {
		n.t.Fatal(err)
	}
	kibibytes := func(name string) int64 {
		found := regexp.MustCompile(`(?m)^` + name + `:\s*(\d+) kB$`).FindSubmatch(text)
		if found == nil {
			n.t.Fatalf("no %s in %s", name, text)
		}
		return mustNumber(n.t)(strconv.ParseInt(string(found[1]), 10, 64)) << 10
	}
	return kibibytes("VmRSS"), kibibytes("VmHWM")
}
