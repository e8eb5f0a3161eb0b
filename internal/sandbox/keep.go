package sandbox

import (
	"flag"
	"os"
	"path/filepath"
	"slices"
)

// kept returns the directories whose changes last, which it makes where they are missing: those of
// the options, and where the flags of go test have the program write.
func (o Options) kept() ([]string, error) {
	var paths, all []string
	if o.Keep != nil {
		var err error
		if paths, err = o.Keep(); err != nil {
			return nil, err
		}
	}
	for _, path := range append(paths, outputs()...) {
		if err := os.MkdirAll(path, 0o755); err != nil {
			return nil, err
		}
		path, err := filepath.EvalSymlinks(path)
		if err != nil {
			return nil, err
		}
		if path, err = filepath.Abs(path); err != nil {
			return nil, err
		}
		if !slices.Contains(all, path) {
			all = append(all, path)
		}
	}
	return all, nil
}

// moduleRoot returns the directory of the module whose test this is.
func moduleRoot() string {
	for dir := "."; ; dir = filepath.Join("..", dir) {
		if abs, err := filepath.Abs(dir); err != nil || abs == "/" {
			return "." // a test that was taken elsewhere
		}
		if exists(filepath.Join(dir, "go.mod")) {
			return dir
		}
	}
}

// outputs returns where this program, if it is a test, writes what is to last: profiles, go's note of
// the files that were read, inputs that fuzzing found, and what -update writes.
func outputs() []string {
	if flag.Lookup("test.outputdir") == nil {
		return nil // it is no test
	}
	if !flag.Parsed() {
		flag.Parse()
	}
	value := func(name string) string {
		if f := flag.Lookup(name); f != nil {
			return f.Value.String()
		}
		return ""
	}
	var dirs []string
	for _, name := range []string{"coverprofile", "cpuprofile", "memprofile", "blockprofile", "mutexprofile", "trace"} {
		if path := value("test." + name); filepath.IsAbs(path) {
			dirs = append(dirs, filepath.Dir(path))
		} else if path != "" {
			dirs = append(dirs, filepath.Dir(filepath.Join(value("test.outputdir"), path)))
		}
	}
	if path := value("test.testlogfile"); path != "" {
		dirs = append(dirs, filepath.Dir(path))
	}
	for _, name := range []string{"test.gocoverdir", "test.fuzzcachedir"} {
		if dir := value(name); dir != "" {
			dirs = append(dirs, dir)
		}
	}
	if value("test.fuzz") != "" {
		dirs = append(dirs, ".") // testdata is below the package
	}
	if value("update") == "true" {
		dirs = append(dirs, moduleRoot())
	}
	return dirs
}
