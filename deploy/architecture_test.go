package deploy

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// goNames are the names that the Go code of the plugin has.
type goNames struct {
	// all are names that are declared, as Name, Type.member, package.Name and package.Type.member, and those of packages.
	all map[string]bool
	// byFile are the names without what they belong to, by the file's name; several packages may have one of that name.
	byFile map[string]map[string]bool
	// words are texts in the code, such as values of attributes.
	words map[string]bool
}

// readGoNames reads the packages of the plugin's module, without its tests.
func readGoNames(t *testing.T) *goNames {
	t.Helper()
	names := &goNames{all: map[string]bool{}, byFile: map[string]map[string]bool{}, words: map[string]bool{}}
	for _, dir := range []string{"../pkg", "../internal", "../cmd"} {
		err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
			if err != nil || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
				return err
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			names.read(filepath.Base(path), file)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return names
}

// read takes in a file.
func (n *goNames) read(base string, file *ast.File) {
	add := func(of string, names ...*ast.Ident) {
		for _, name := range names {
			if n.byFile[base] == nil {
				n.byFile[base] = map[string]bool{}
			}
			n.byFile[base][name.Name], n.all[name.Name] = true, true
			n.all[strings.TrimPrefix(of+"."+name.Name, ".")], n.all[file.Name.Name+"."+strings.TrimPrefix(of+"."+name.Name, ".")] = true, true
		}
	}
	n.all[file.Name.Name] = true
	ast.Inspect(file, func(node ast.Node) bool {
		switch d := node.(type) {
		case *ast.FuncDecl:
			of := ""
			if d.Recv != nil {
				of = typeName(d.Recv.List[0].Type)
			}
			add(of, d.Name)
		case *ast.TypeSpec:
			add("", d.Name)
			for _, field := range members(d.Type) {
				add(d.Name.Name, field.Names...)
			}
		case *ast.ValueSpec:
			add("", d.Names...)
		case *ast.BasicLit:
			if word, err := strconv.Unquote(d.Value); err == nil && d.Kind == token.STRING {
				n.words[word] = true
			}
		}
		return true
	})
}

// members returns the fields of a struct, or the methods of an interface.
func members(of ast.Expr) []*ast.Field {
	switch of := of.(type) {
	case *ast.StructType:
		return of.Fields.List
	case *ast.InterfaceType:
		return of.Methods.List
	}
	return nil
}

// typeName returns the name of a receiver's type.
func typeName(of ast.Expr) string {
	switch of := of.(type) {
	case *ast.StarExpr:
		return typeName(of.X)
	case *ast.IndexExpr:
		return typeName(of.X)
	case *ast.Ident:
		return of.Name
	}
	return ""
}

// repositoryPaths returns the files and directories of the repository that git has, by their paths and by each end of these.
func repositoryPaths(t *testing.T) map[string]bool {
	t.Helper()
	paths := map[string]bool{}
	err := filepath.WalkDir("..", func(path string, entry fs.DirEntry, err error) error {
		if entry.IsDir() && slices.Contains([]string{".git", "bin"}, entry.Name()) {
			return fs.SkipDir
		}
		for rest, ok := path, true; ok; {
			_, rest, ok = strings.Cut(rest, "/")
			paths[rest] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return paths
}

// TestArchitectureNames: what ARCHITECTURE.md names of the code is there: files, packages, and Go's names, those with a file
// in brackets in that one.
func TestArchitectureNames(t *testing.T) {
	text := documents(t)["ARCHITECTURE.md"]
	names, paths := readGoNames(t), repositoryPaths(t)
	name := regexp.MustCompile(`^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$`)
	missing := map[string]bool{}
	for _, got := range regexp.MustCompile("`([^`\n]+)`").FindAllStringSubmatch(text, -1) {
		word := got[1]
		switch {
		case strings.HasPrefix(word, "trusted."), strings.HasPrefix(word, "security."): // attributes of files
		case strings.ContainsAny(word, " -") && !strings.Contains(word, "/"): // a command, a flag, a component
		case strings.ContainsAny(word, " ") || strings.HasPrefix(word, "--"):
		case paths[strings.TrimSuffix(word, "/")]:
		case !name.MatchString(word) || strings.HasSuffix(word, ".go"):
			if strings.Contains(word, "/") || strings.HasSuffix(word, ".go") {
				missing[word] = true
			}
		case !names.all[word] && !(names.words[word] && 'A' <= word[0] && word[0] <= 'Z'):
			missing[word] = true
		}
	}
	for _, got := range regexp.MustCompile("`([A-Za-z_]\\w*)` \\(((?:`\\w+\\.go`(?:, )?)+)\\)").FindAllStringSubmatch(text, -1) {
		in := false
		for _, file := range strings.Split(strings.ReplaceAll(got[2], "`", ""), ", ") {
			in = in || names.byFile[file][got[1]]
		}
		if !in {
			missing[got[1]+" in "+got[2]] = true
		}
	}
	if len(missing) > 0 {
		t.Errorf("ARCHITECTURE.md names what is not there: %q", slices.Sorted(maps.Keys(missing)))
	}
}
