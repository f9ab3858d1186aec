"""The settings for Neovim that docs/editor.md shows, in a Neovim: what its keys then do."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import requirements
from pages import blocks

MODULE = """\
module @step attributes {pw.form = "placed"} {
  sdy.mesh @mesh = <["x"=2]>
  "pw.slice"() {mesh = @mesh, sym_name = "s0"} : () -> ()
  "pw.slice"() {mesh = @mesh, sym_name = "s1"} : () -> ()
  func.func public @main(%x: tensor<2xf32> {pw.slice = @s0}) -> (tensor<2xf32> {pw.slice = @s1}) {
    %y = "pw.launch"(%x) {callee = @one, slice = @s0} : (tensor<2xf32>) -> tensor<2xf32>
    %z = "pw.transfer"(%y) {slice = @s1} : (tensor<2xf32>) -> tensor<2xf32>
    return %z : tensor<2xf32>
  }
  func.func private @one(%x: tensor<2xf32>) -> tensor<2xf32> {
    return %x : tensor<2xf32>
  }
}
"""
BROKEN = MODULE.replace("@one,", "@none,")
PRESSES = """
local seen = {}
local function wait(what)
  vim.wait(60000, what, 20)
end
local function press(keys, otherwise)
  if vim.fn.maparg(keys, "n") == "" and otherwise then
    otherwise()
  else
    vim.api.nvim_feedkeys(vim.api.nvim_replace_termcodes(keys, true, false, true), "mx", false)
  end
end
local function float()
  for _, window in ipairs(vim.api.nvim_list_wins()) do
    if vim.api.nvim_win_get_config(window).relative ~= "" then
      return vim.api.nvim_win_get_buf(window)
    end
  end
end
local function listed()
  local entries = {}
  wait(function()
    -- Which of the two lists it is has changed with versions.
    entries = vim.list_extend(vim.fn.getqflist(), vim.fn.getloclist(0))
    return #entries > 0
  end)
  vim.cmd("wincmd p")
  vim.fn.setqflist({})
  vim.fn.setloclist(0, {})
  return vim.tbl_map(function(entry) return entry.lnum end, entries)
end
local function problems()
  return vim.diagnostic.get(0)
end

wait(function() return #problems() > 0 end)
seen.problems = vim.tbl_map(function(p) return { p.lnum, p.col, p.end_col, p.message } end, problems())
vim.cmd("%s/@none/@one/")
wait(function() return #problems() == 0 end)
seen.mended = #problems() == 0
vim.fn.search("%z :")
press("K", vim.lsp.buf.hover)
wait(float)
seen.hover = float() and vim.api.nvim_buf_get_lines(float(), 0, -1, false)
press("<C-]>")
seen.definition = vim.api.nvim_win_get_cursor(0)
press("gO", vim.lsp.buf.document_symbol)
seen.symbols = listed()
press("grr", vim.lsp.buf.references)
seen.references = listed()
vim.fn.writefile({ vim.fn.json_encode(seen) }, "seen.json")
vim.cmd("qa!")
"""


@pytest.mark.process
@pytest.mark.needs("neovim")
def test_neovim_works_as_its_page_shows(tmp_path):
    new, old = (block.text for block in blocks("docs/editor.md", "lua"))
    (tmp_path / "init.lua").write_text(new if requirements.neovim_version() >= (0, 11) else old)
    (tmp_path / "press.lua").write_text(PRESSES)
    (tmp_path / "step.mlir").write_text(BROKEN)
    tools = Path(sys.executable).parent
    result = subprocess.run(
        [
            requirements.NEOVIM,
            "--headless",
            "-n",
            "-i",
            "NONE",
            "-u",
            "init.lua",
            "step.mlir",
            "-c",
            "luafile press.lua",
        ],
        cwd=tmp_path,
        env=os.environ | {"PATH": f"{tools}:{os.environ['PATH']}", "XDG_STATE_HOME": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    seen = json.loads((tmp_path / "seen.json").read_text())
    ((line, start, end, message),) = seen["problems"]
    assert BROKEN.splitlines()[line][start:end] == '"pw.launch"'
    assert "`callee` refers to @none" in message
    assert seen["mended"]
    assert seen["hover"][0].startswith("`tensor<2xf32>` on `@s1`")
    assert seen["definition"] == [7, 4]
    assert seen["references"] == [7, 8]
    assert seen["symbols"] == [1, 2, 3, 4, 5, 10]
