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
)

const usage = `usage:
  probe sleep                               until SIGTERM
  probe read FILE                           the file's bytes
  probe tree DIR                            each entry below DIR, in JSON
  probe write FILE TEXT                     "ok", or the name of the errno
  probe await FILE TEXT TIMEOUT             "ready", then in JSON how TEXT arrived
  probe login TIMEOUT LAST DIR              "ready", then in JSON how often a login with the user and the password of DIR failed,
                                            until both are LAST
  probe follow FILE...                      the clock's name, then in JSON each text that a FILE gets, and each
                                            read that fails, until SIGTERM
  probe reload PERIOD FILE                  the clock's name, then in JSON each text that it reads, by a descriptor
                                            that it opens each PERIOD, until SIGTERM
  probe obey FILE                           each text that FILE gets, a line each, until one that begins with "bad", which
                                            is an error, or SIGTERM
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
	if len(args) == 0 {
		return errors.New(usage)
	}
	command, args := args[0], args[1:]
	switch {
	case command == "sleep" && len(args) == 0:
		<-ctx.Done()
		return nil
	case command == "read" && len(args) == 1:
		return read(out, args[0])
	case command == "tree" && len(args) == 1:
		return answer(out)(tree(args[0]))
	case command == "write" && len(args) == 2:
		return write(out, args[0], args[1])
	case command == "await" && len(args) == 3:
		return await(ctx, out, args[0], args[1], args[2])
	case command == "login" && len(args) == 3:
		return login(ctx, out, args[0], args[1], args[2])
	case command == "follow" && len(args) >= 1:
		return follow(ctx, out, args)
	case command == "reload" && len(args) == 2:
		return reload(ctx, out, args[0], args[1])
	case command == "obey" && len(args) == 1:
		return obey(ctx, out, args[0])
	case command == "events" && len(args) == 2:
		return followEvents(ctx, out, strings.Split(args[0], ","), args[1])
	case command == "mounts" && len(args) == 1:
		return answer(out)(mounts("/proc", args[0]))
	case command == "install" && len(args) == 1:
		return install(args[0])
	case command == "curl" && len(args) > 0:
		return curl(ctx, out, args)
	case command == "serve" && len(args) == 2:
		return serve(ctx, args[0], args[1])
	case command == "requests" && len(args) == 1:
		return sendRequests(ctx, out, args[0])
	case len(args) == 1:
		return assail(ctx, out, command, args[0])
	}
	return errors.New(usage)
}

// assail makes the attacks that the argument asks for.
func assail(ctx context.Context, out io.Writer, command, arg string) error {
	how, ok := map[string]func(context.Context, *assault) (siege, error){
		"attack": attack, "remount": remount, "escape": escape,
	}[command]
	if !ok {
		return errors.New(usage)
	}
	a := new(assault)
	if err := json.Unmarshal([]byte(arg), a); err != nil {
		return fmt.Errorf("assault %q: %w", arg, err)
	}
	return answer(out)(how(ctx, a))
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
