// Command probe is all that is in the image of the end-to-end tests' pods. Run by
// exec in a pod, it shows a volume as that pod's containers see it; in a privileged
// pod with the node's process ids it shows what a volume left on the node.
//
// It answers on stdout and exits 0; when it can't answer it says why on stderr and
// exits 1. It knows nothing of refvol.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/refvol/refvol/e2e/tools/probe/answers"
)

const usage = `usage:
  probe sleep                               until SIGTERM
  probe read FILE                           the file's bytes
  probe tree DIR                            each entry below DIR, in JSON
  probe write FILE TEXT                     "ok", or the name of the errno
  probe login LAST DIR                      in JSON how often a login with the user and the password of DIR failed, until both are LAST
  probe follow FILE...                      the clock's name, then in JSON each text that a FILE gets, and each
                                            read that fails, until SIGTERM
  probe obey FILE                           as follow, until a text that begins with "bad", which is an error
  probe events PATHS DIR                    "ready", then a line for each event (inotify) of the PATHS, separated by commas, in
                                            DIR, until SIGTERM
  probe mounts TEXT                         the mounts of all processes that have TEXT, in JSON
  probe attack ASSAULT                      what became of attacks on files, in JSON
  probe remount ASSAULT                     what became of attacks on mounts, in JSON
  probe escape ASSAULT                      what became of attempts to leave the container, in JSON
  probe install FILE                        a copy of the program
  probe curl --cacert FILE ... URL          the answer to a request by HTTPS, as curl gives it
  probe serve ADDRESS NAME                  the value of a variable, to each HTTP request, until SIGTERM
  probe requests URL                        each second in JSON how many requests were sent and have failed, until SIGTERM
A program called curl takes these arguments alone.`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	args := os.Args[1:]
	if name := filepath.Base(os.Args[0]); name == "curl" {
		args = append([]string{name}, args...)
	}
	if err := run(ctx, os.Stdout, args); err != nil {
		fmt.Fprintln(os.Stderr, "probe:", err)
		os.Exit(1)
	}
}

// run does what args say and writes the answer to out.
func run(ctx context.Context, out io.Writer, args []string) error {
	// args is how many arguments a command has, or at least has if it takes more.
	commands := map[string]struct {
		args int
		more bool
		run  func(a []string) error
	}{
		"sleep":    {0, false, func([]string) error { return sleep(ctx) }},
		"read":     {1, false, func(a []string) error { return read(out, a[0]) }},
		"tree":     {1, false, func(a []string) error { return answer(out)(tree(a[0])) }},
		"write":    {2, false, func(a []string) error { return write(out, a[0], a[1]) }},
		"login":    {2, false, func(a []string) error { return login(ctx, out, a[0], a[1]) }},
		"follow":   {1, true, func(a []string) error { return follow(ctx, out, false, a) }},
		"obey":     {1, false, func(a []string) error { return follow(ctx, out, true, a) }},
		"events":   {2, false, func(a []string) error { return followEvents(ctx, out, strings.Split(a[0], ","), a[1]) }},
		"mounts":   {1, false, func(a []string) error { return answer(out)(mounts(a[0]), nil) }},
		"attack":   {1, false, func(a []string) error { return assail(ctx, out, attack, a[0]) }},
		"remount":  {1, false, func(a []string) error { return assail(ctx, out, remount, a[0]) }},
		"escape":   {1, false, func(a []string) error { return assail(ctx, out, escape, a[0]) }},
		"install":  {1, false, func(a []string) error { return install(a[0]) }},
		"curl":     {1, true, func(a []string) error { return curl(ctx, out, a) }},
		"serve":    {2, false, func(a []string) error { return serve(ctx, a[0], a[1]) }},
		"requests": {1, false, func(a []string) error { return sendRequests(ctx, out, a[0]) }},
	}
	if len(args) == 0 {
		return errors.New(usage)
	}
	command, ok := commands[args[0]]
	if args = args[1:]; !ok || len(args) < command.args || len(args) > command.args && !command.more {
		return errors.New(usage)
	}
	return command.run(args)
}

func sleep(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

// assail makes the attacks that the argument asks for.
func assail(ctx context.Context, out io.Writer, how func(context.Context, *answers.Assault) (*siege, error), arg string) error {
	a := new(answers.Assault)
	if err := json.Unmarshal([]byte(arg), a); err != nil {
		return fmt.Errorf("assault %q: %w", arg, err)
	}
	s, err := how(ctx, a)
	return answer(out)(s, err)
}

// answer returns a function that writes a value to out in JSON, unless there is an
// error to return.
func answer(out io.Writer) func(any, error) error {
	return func(value any, err error) error {
		if err != nil {
			return err
		}
		return json.NewEncoder(out).Encode(value)
	}
}
