package harness

import (
	"fmt"
	"os"
	"strings"
)

// EnterCommand returns the start of a command line that runs a program in the sandbox of this process, for the person
// who started it.
func EnterCommand() (string, error) {
	command := fmt.Sprintf("nsenter --target %s --mount", os.Getenv("REFVOL_SANDBOX_PID"))
	if !initialUsers() {
		command += " --user --preserve-credentials"
	}
	return command, nil
}

// IsRoot says whether this process is root of the machine, not only of a user namespace.
func IsRoot() bool { return os.Geteuid() == 0 && initialUsers() }

// initialUsers tells whether the user namespace is the initial one, or one as good: root is root, and not alone.
func initialUsers() bool {
	data, _ := os.ReadFile("/proc/self/uid_map")
	mapped := strings.Fields(string(data))
	return len(mapped) >= 3 && mapped[0] == "0" && mapped[1] == "0" && mapped[2] != "1"
}
