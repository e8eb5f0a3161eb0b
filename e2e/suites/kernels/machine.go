package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/refvol/refvol/e2e/tools/controlplane"
	"github.com/refvol/refvol/e2e/tools/gobuild"
)

// machineTimeout is how long one machine may run: five times as long as they take on two
// busy processors.
const machineTimeout = time.Hour

//go:embed init.sh
var initScript string

// runMachine boots a machine, from what dir has of Debian, and notes the outcome of each part.
func (r *runner) runMachine(ctx context.Context, dir, name string, m machine) (err error) {
	initrd := filepath.Join(r.work, "initramfs")
	server, err := r.writeInitramfs(ctx, initrd, dir, m)
	if err != nil {
		return err
	}
	if server != nil {
		defer func() { err = errors.Join(err, server.Stop()) }()
	}
	console, err := os.Create(filepath.Join(r.cache, name+".log"))
	if err != nil {
		return err
	}
	defer console.Close()
	fmt.Printf("%s: booting; its console is in %s\n", name, console.Name())
	ctx, cancel := context.WithTimeout(ctx, machineTimeout)
	defer cancel()
	// QEMU 7.2 sometimes spoils the flags in cmpxchg16b, which newer kernels allocate
	// memory with; without it, they have another way.
	const cpu = "max,-cx16"
	arguments := "console=ttyS0 quiet panic=-1"
	if m.selinux {
		arguments += " lsm=selinux"
	}
	qemu := exec.CommandContext(ctx, "qemu-system-x86_64", "-accel", "tcg,thread=multi", "-cpu", cpu, "-smp", "2", "-m", "3G",
		"-display", "none", "-monitor", "none", "-serial", "stdio", "-no-reboot", "-nic", "user,model=virtio-net-pci",
		"-kernel", filepath.Join(dir, "vmlinuz"), "-initrd", initrd, "-append", arguments)
	out, err := qemu.StdoutPipe()
	if err != nil {
		return err
	}
	qemu.Stderr = os.Stderr
	if err := qemu.Start(); err != nil {
		return err
	}
	ran := &session{parts: m.parts, failures: os.Stdout}
	readErr := ran.read(io.TeeReader(out, console))
	err = errors.Join(readErr, qemu.Wait(), ctx.Err())
	r.outcomes = append(r.outcomes, ran.outcomes...)
	if err == nil && !ran.ended {
		err = errors.New("the machine stopped before its end")
	}
	if err != nil {
		return fmt.Errorf("%s: %w; the last lines are\n%s", name, err, strings.Join(ran.last, "\n"))
	}
	return nil
}

// writeInitramfs builds the tests and puts all that a machine has into one file. It returns
// the control plane that it started for the machine, nil where there is no need.
func (r *runner) writeInitramfs(ctx context.Context, name, dir string, m machine) (server *controlplane.ControlPlane, err error) {
	a := initramfs(name + ".d")
	if err := errors.Join(os.RemoveAll(string(a)), addSystem(a, dir)); err != nil {
		return nil, err
	}
	if m.selinux {
		// The first release whose policy knows containers.
		policy, err := r.debian(ctx, "policy", "trixie")
		if err != nil {
			return nil, err
		}
		if err := a.addFile("policy", filepath.Join(policy, "policy")); err != nil {
			return nil, err
		}
	}
	env := ""
	if slices.ContainsFunc(m.parts, func(p part) bool { return p.plugin }) {
		if server, env, err = r.startServer(ctx, a); err != nil {
			return nil, err
		}
	}
	if err = r.addParts(ctx, a, m.parts, env); err == nil {
		err = a.pack(ctx, filepath.Join(dir, "busybox"), name)
	}
	if err != nil {
		if server != nil {
			err = errors.Join(err, server.Stop())
		}
		return nil, err
	}
	return server, nil
}

// addSystem adds what a machine starts with.
func addSystem(a initramfs, dir string) error {
	for _, empty := range []string{"dev", "proc", "sys", "tmp", "bin"} {
		if err := a.addDirectory(empty); err != nil {
			return err
		}
	}
	modules, err := filepath.Glob(filepath.Join(dir, "modules", "*"))
	if err != nil {
		return err
	}
	for _, module := range modules {
		if err := a.addFile("modules/"+filepath.Base(module), module); err != nil {
			return err
		}
	}
	return errors.Join(a.addFile("bin/busybox", filepath.Join(dir, "busybox")), a.addText("init", initScript))
}

// addParts adds the tests, and the script that runs them.
func (r *runner) addParts(ctx context.Context, a initramfs, parts []part, env string) error {
	var script strings.Builder
	for i, p := range parts {
		program, err := r.build(ctx, p)
		if err != nil {
			return err
		}
		binary := fmt.Sprintf("%d.test", i)
		// Tests find the checkout by their working directory.
		place := filepath.Join("checkout", p.module, p.pkg)
		if err := errors.Join(a.addDirectory(place), a.addFile(binary, program)); err != nil {
			return err
		}
		script.WriteString(marked(i, fmt.Sprintf("cd /%s && %s/%s %s", place, env, binary, strings.Join(p.arguments(), " "))))
	}
	return a.addText("parts", script.String())
}

// marked returns what runs a command as a part of that number. A command may end in the middle of a line, so the marks
// begin new ones.
func marked(number int, command string) string {
	return fmt.Sprintf("printf '\\n@begin %d\\n'\n(%s)\nprintf '\\n@end %%d\\n' $?\n", number, command)
}

// build builds a part's tests, statically, once.
func (r *runner) build(ctx context.Context, p part) (string, error) {
	key := p.module + "/" + p.pkg
	if r.programs[key] == "" {
		program := filepath.Join(r.work, fmt.Sprintf("%d.test", len(r.programs)))
		env := []string{"CGO_ENABLED=0", "GOFLAGS=-trimpath -buildvcs=false", "GOARCH=amd64"}
		if _, err := gobuild.Go(ctx, filepath.Join(r.root, p.module), env, "test", "-c", "-o", program, p.pkg); err != nil {
			return "", err
		}
		r.programs[key] = program
	}
	return r.programs[key], nil
}

// arguments are those of the part's test binary.
func (p part) arguments() []string {
	args := []string{"-test.v", "-test.timeout=45m"}
	if len(p.tests) > 0 {
		args = append(args, fmt.Sprintf("'-test.run=^(%s)$'", strings.Join(p.tests, "|")))
	}
	return args
}
